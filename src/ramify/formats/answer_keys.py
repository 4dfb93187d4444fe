r"""Answer keys: what an answer in free words says, as a text that equal answers share. Votes over messages use it.

The first of these that an answer has is its key: its tool calls as canonical JSON; the content of its last
`\boxed{…}`; the whole answer as canonical JSON, if it is an object or a list; the number that ends its last line behind
a colon, `=`, `is`, `are` or `equals`, or that is the whole answer; and otherwise all its words, without case and runs
of space. Numbers are compared by value: `1,000` is `1000.0`.
"""

import json
import re
from fractions import Fraction
from typing import Any, Final

from ramify.formats.boxed import boxed
from ramify.formats.calls import CALL, CALL_END

MAX_LINE_CHARS: Final = 200
"""So much of the last line is looked at."""

_NUMBER: Final = r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9]{1,40})(?:\.[0-9]{1,40})?"
_MARKS: Final = r"[\s*_`$\\()\[\]]{0,8}"
_ENDS = re.compile(
    rf"(?:^|:|=|\b(?:is|are|equals)\b){_MARKS}({_NUMBER}){_MARKS}%?{_MARKS}[.!]?{_MARKS}$", re.IGNORECASE
)
_WHOLE = re.compile(_NUMBER)
_FENCE = re.compile(r"\A```[\w-]{0,20}\n(.*)\n```\Z", re.DOTALL)


def answer_key(text: str) -> str:
    """What an answer says. Answers with equal keys mean the same."""
    if CALL in text:
        return "\n".join(map(canonical, _calls(text)))
    content = boxed(text)
    if content is not None:
        return _plain(content)
    data = canonical_table(text)
    return _ending(text) or _plain(text) if data is None else data


def is_same_key(one: str, other: str) -> bool:
    """Whether two answers mean the same."""
    return one == other or answer_key(one) == answer_key(other)


def canonical(text: str) -> str:
    """JSON with sorted keys and without space; text that is no JSON as it is, without outer space."""
    try:
        return _dumped(json.loads(text))
    except (ValueError, RecursionError):
        return text.strip()


def canonical_table(text: str) -> str | None:
    """An object or a list in canonical JSON, also inside a fence of code; None = the text is neither."""
    stripped = text.strip()
    if (fenced := _FENCE.match(stripped)) is not None:
        stripped = fenced[1].strip()
    if not stripped.startswith(("{", "[")):
        return None
    try:
        return _dumped(json.loads(stripped))
    except (ValueError, RecursionError):
        return None


def _calls(text: str) -> list[str]:
    """The texts between the tags of calls, in order."""
    return [part.partition(CALL_END)[0] for part in text.split(CALL)[1:]]


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _ending(text: str) -> str | None:
    """The number that the last line ends with; None = it does not say one."""
    line = text.rstrip().rpartition("\n")[2][-MAX_LINE_CHARS:]
    found = _ENDS.search(line)
    return None if found is None else _value(found[1])


def _plain(text: str) -> str:
    """A number by its value; other text without case, outer space, runs of space and a last full stop."""
    words = " ".join(text.casefold().split()).removesuffix(".")
    return _value(words) if _WHOLE.fullmatch(words) else words


def _value(number: str) -> str:
    return str(Fraction(number.replace(",", "")))
