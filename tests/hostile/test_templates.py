"""Chat templates of hostile model folders: programs that would take time or memory without end."""
# ruff: noqa: E501 - a template a line

import time
import tracemalloc

import pytest

from ramify.core.errors import ConfigError
from ramify.engines.chat_template import ChatTemplate

pytestmark = pytest.mark.hostile

ASKED = [{"role": "user", "content": "q" * 1000}, {"role": "assistant", "content": "a"}]
MOST_S = 20.0
MOST_BYTES = 600 << 20
LOOP = "{% for i in range(100000) %}"
DEEP = "{% set n = namespace(x=['x']) %}{% for i in range(64) %}{% set n.x = BOTH %}{% endfor %}".replace(
    "BOTH", "[n.x, n.x]"
)
PAIRS = "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}USE{% endif %}{% endmacro %}{{ m(64, 1) }}"
BIG = "{% set big = 'x' * 30000000 %}"
ENDLESS = {
    "loops": LOOP * 3 + "{% endfor %}" * 3,
    "a loop that takes nothing": LOOP + "{% for j in range(100000) if j < 0 %}{% endfor %}{% endfor %}",
    "a loop of much fixed text": LOOP + "x" * 10000 + "{% endfor %}",
    "a set of much fixed text": "{% set t %}" + LOOP + "x" * 10000 + "{% endfor %}{% endset %}",
    "a loop of itself": "{% for x in [60] recursive %}{% if x %}{{ loop([x - 1, x - 1]) }}{% endif %}{% endfor %}",
    "a loop of much that is written": LOOP + "{% for k in range(100) %}" + "{% if k == 1.5 %}{% endif %}" * 5000 + "{% endfor %}{% endfor %}",
    "macros that call each other twice": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "macros without end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a text that doubles": "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "a text that doubles by ~": "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a text that doubles by a block": "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set b %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = b %}{% endfor %}",
    "a text that doubles by a filter": "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s|replace('x', 'xx') %}{% endfor %}",
    "a list that doubles": "{% set n = namespace(s=[1]) %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "a long text": "{{ 'x' * 9999999999 }}",
    "a long text that is not shown": "{% set a = 9999999999 * 'x' %}",
    "a long text of a constant": "{{ 'x'|center(9999999999) }}",
    "a long list": "{{ ([1] * 9999999999)|length }}",
    "a large number": "{{ 9 ** 9999999999 }}",
    "a large number by steps": "{% set n = namespace(i=10) %}{% for i in range(64) %}{% set n.i = n.i * n.i %}{% endfor %}",
    "a large number that is read": BIG + "{% set n = ('f' * 20000000)|int(base=16) %}" + LOOP + "{% if -n is divisibleby(7 - n) %}{% endif %}{% endfor %}",
    "a wide field": "{{ '%9999999999d' % 1 }}",
    "a wide field of bytes": "{{ 'x%9999999999d'.encode() % 1 }}",
    "a field as wide as a value says": "{{ '%*d' % (9999999999, 1) }}",
    "a wide field of format": "{{ '{:9999999999}'.format(1) }}",
    "a field of format as wide as a value says": "{{ '{:{}}'.format(1, 9999999999) }}",
    "a precise field": "{{ '%.9999999999f'|format(1) }}",
    "the same field often": BIG + "{{ ('{0}' * 100).format(big) }}",
    "a format of a map": BIG + "{{ ('{a}' * 100).format_map({'a': big}) }}",
    "a method that pads": "{{ 'x'.ljust(9999999999) }}{{ 'x'.rjust(9999999999) }}",
    "a method that fills": "{{ 'x'.zfill(9999999999) }}",
    "a method of attr that fills": "{{ ('x'|attr('zfill'))(9999999999) }}",
    "a method of a loop that fills": "{% for f in ['x'.zfill] %}{{ f(9999999999) }}{% endfor %}",
    "tabs": "{{ '\\t'.expandtabs(2000000000) }}",
    "bytes": "{{ (5).to_bytes(9999999999, 'big') }}",
    "a codec of quadratic time": "{{ ('é' * 3000000).encode('punycode') }}",
    "a join": "{{ range(100000)|join('x' * 100000) }}",
    "a join by a method": "{{ ('x' * 100000).join(['a'] * 100000) }}",
    "a join of what is made one by one": "{{ range(100000)|map('string')|join('x' * 100000) }}",
    "a join by a method of what is made one by one": "{{ ('x' * 100000).join(range(100000)|map('string')) }}",
    "a replacement": "{{ ('x' * 100000)|replace('x', 'y' * 100000) }}",
    "a replacement of nothing": "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
    "a translation": "{{ ('x' * 1000000).translate({120: 'y' * 1000000}) }}",
    "an indent": "{{ ('x\\n' * 1000000)|indent(1000000) }}",
    "an indent of JSON": "{{ messages|tojson(indent=999999999) }}",
    "separators of JSON": "{{ range(100000)|list|tojson(separators=('x' * 100000, '')) }}",
    "wrapped words": "{{ ('x ' * 1000000)|wordwrap(1, wrapstring='y' * 1000000) }}",
    "batches": "{{ [1]|batch(9999999999, 0)|list }}",
    "slices": "{{ [1]|slice(9999999999)|list }}",
    "a round number": "{{ 1.5|round(99999999, 'ceil') }}",
    "a sum of lists": "{{ ([messages] * 100000)|sum(start=[])|length }}",
    "filters of filters": LOOP + "{{ range(100000)|map('abs')|map('abs')|map('abs')|list|length }}{% endfor %}",
    "a filter that only looks": LOOP + "{{ range(100000)|select('none')|list|length }}{% endfor %}",
    "a search in a text": BIG + LOOP + "{% if messages[0].content + 'y' in big %}{% endif %}{% endfor %}",
    "a search in a range": LOOP + "{% if 'x' in range(100000) %}{% endif %}{% endfor %}",
    "a search in a list": "{% set l = range(100000)|list %}" + LOOP + "{% if loop.index + 0.5 in l %}{% endif %}{% endfor %}",
    "a comparison of texts": BIG + "{% set other = 'x' * 30000000 %}" + LOOP + "{% if other == big %}{% endif %}{% endfor %}",
    "a comparison of three": BIG + "{% set other = 'x' * 30000000 %}" + LOOP + "{% if 'w' < other == big %}{% endif %}{% endfor %}",
    "a test of texts": BIG + "{% set other = 'x' * 30000000 %}" + LOOP + "{% if other is eq(big) %}{% endif %}{% endfor %}",
    "a slice": BIG + LOOP + "{% set s = big[1:] %}{% endfor %}",
    "a split": BIG + LOOP + "{% set s = big.split('x') %}{% endfor %}",
    "a method of lists": "{% set l = range(100000)|list %}" + LOOP + "{% set s = l.count(1.5) %}{% endfor %}",
    "a list in lists, shown": DEEP + "{{ n.x }}",
    "a list in lists, joined to a text": DEEP + "{{ 'x' ~ n.x }}",
    "a list in lists, as JSON": DEEP + "{{ n.x|tojson }}",
    "tuples in tuples, shown": PAIRS.replace("USE", "{{ varargs }}"),
    "tuples in tuples, as a key": PAIRS.replace("USE", "{% set d = {varargs: 1} %}"),
    "tuples in tuples, looked up": PAIRS.replace("USE", "{{ {}[varargs] }}"),
    "tuples in tuples, looked for": PAIRS.replace("USE", "{% if varargs in {} %}{% endif %}"),
    "tuples in tuples, got": PAIRS.replace("USE", "{{ {}.get(varargs) }}"),
    "tuples in tuples, as an attribute": PAIRS.replace("USE", "{{ [{}]|map(attribute=varargs)|list }}"),
    "tuples in tuples, compared": PAIRS.replace("USE", "{% if varargs == varargs|list %}{% endif %}"),
    "namespaces in namespaces": "{% set n = namespace(x=1) %}{% for i in range(64) %}{% set n.x = namespace(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}" + LOOP * 2 + "{% endfor %}" * 2,
    "refunds": LOOP * 2 + "{{ [-9999999]|map('count a turn')|list }}{% endfor %}{% endfor %}",
}  # fmt: skip
"""What a template does -> the template. Each would take hours or gigabytes."""


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_without_end_is_stopped(name: str):
    """A template that would take hours or gigabytes is a fault of its model, after seconds and few bytes."""
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        ChatTemplate(ENDLESS[name], name="mine")(ASKED, [], True)
    assert time.monotonic() - began < MOST_S
    said = str(caught.value)
    assert said.startswith("mine is over its budget: it has spent") or name == "macros without end", said
    assert name == "macros without end" or "name another one by format_options.template" in said


@pytest.mark.parametrize(
    "name", ["a text that doubles", "a text that doubles by a block", "a join", "batches", "a slice"]
)
def test_a_template_takes_a_bounded_memory(name: str):
    """A template that makes large values takes no more memory than its budget of characters."""
    template = ChatTemplate(ENDLESS[name])
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            template(ASKED, [], True)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_template_ends_the_same_way_each_time():
    """A template that is over its budget spends the same each time: steps are counted, not seconds."""

    def fault(template: ChatTemplate) -> str:
        with pytest.raises(ConfigError) as caught:
            template(ASKED, [], True)
        return str(caught.value)

    template = ChatTemplate(ENDLESS["loops"])
    assert fault(template) == fault(template) == fault(ChatTemplate(ENDLESS["loops"]))


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "-" * 5000 + "1 }}",
        "{% if x %}" * 3000 + "{% endif %}" * 3000,
        "{% for x in y %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "9" * 5000 + " }}",
        "x" * (1 << 20),
        "{{ 'x'|pprint }}",
        "{{ lipsum() }}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
    ],
    ids=lambda source: source[:24],
)
def test_a_template_that_does_not_compile_is_said(source: str):
    """A template that is too long, nested too deep or loads others is a fault of its model, never a traceback."""
    with pytest.raises(ConfigError):
        ChatTemplate(source)(ASKED, [], True)
