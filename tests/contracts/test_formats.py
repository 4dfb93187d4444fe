"""What every registered format keeps to, whatever it is given to read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify import plugins
from ramify.core.format import Format
from ramify.testing.contracts.formats import FORMAT_RULES, OPENINGS, FormatCase, read_any, read_stopped
from ramify.testing.contracts.rules import keep

NAMES = [name for name in plugins.known("format") if name != "chat"]
"""`chat` is made of a template, and tested with many."""
FORMATS: dict[str, Format] = {name: plugins.build("format", name) for name in NAMES}
WORDS = sorted({word for format in FORMATS.values() for word in format.stops})
RUNS = st.lists(st.sampled_from([*WORDS, *OPENINGS])).map("".join)


@pytest.mark.parametrize("rule", FORMAT_RULES)
@pytest.mark.parametrize("name", NAMES)
def test_every_format_keeps_the_contract(name: str, rule: str) -> None:
    keep(FORMAT_RULES, rule, FormatCase(lambda: FORMATS[name]), f"format {name}")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(run=RUNS)
def test_it_reads_any_run_and_answers_whatever_it_reads(name: str, run: str) -> None:
    read_any(FORMATS[name], run)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(run=RUNS)
def test_without_a_stop_word_no_tool_is_called(name: str, run: str) -> None:
    read_stopped(FORMATS[name], run)
