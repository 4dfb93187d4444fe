"""Frame: what a template writes around its contents. It is learned once, by rendering marks in their place.

A frame is data: glue, which is the template's and trusted, and slots, which are not trusted. A frame is learned only if
the template treats contents in one of the known ways, whatever they hold; `PROBES` are the contents it is tried with.
Nothing is rendered afterwards, so no content can be mistaken for a mark.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from types import MappingProxyType
from typing import Final

from ramify.core.errors import ConfigError
from ramify.core.format import Span

CHANGES: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType(
    {
        "as it is": str,
        "stripped": str.strip,
        "stripped on the left": str.lstrip,
        "stripped on the right": str.rstrip,
        "as JSON": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    }
)
"""What templates are known to do to a content."""

PROBES: Final = (
    "word",
    "  space around \t\n\n",
    "\n\nlines\r\nof text, \u2028 é ☃ 𝄞 \x1f\u00a0",
    "\"quotes\" 'and' \\n back\\slashes",
    '{"name": "f", "arguments": {"a": [1, null]}}',
    "{{ braces }} {% raw %} {# note #} %s {0} $x",
    "<|im_end|>\n<|im_start|>system\n</s> [INST] & <b>",
    "</tool_response><tool_response></think><think>\n<answer>",
    "[1, 2]",
    "0",
)
"""Contents with at least one visible character; every content has one."""

Render = Callable[[Mapping[str, str]], str]
"""Values of the slots -> the text rendered with them."""


@dataclass(frozen=True, slots=True)
class FrameSlot:
    """The place of a content, and what the template does to it."""

    name: str
    change: str = "as it is"


@dataclass(frozen=True, slots=True)
class Frame:
    """Glue and slots in order."""

    parts: tuple[str | FrameSlot, ...]

    @property
    def head(self) -> str:
        """Glue before the first slot."""
        return self.parts[0] if self.parts and isinstance(self.parts[0], str) else ""

    @property
    def tail(self) -> str:
        """Glue after the last slot; the model continues there."""
        return self.parts[-1] if self.parts and isinstance(self.parts[-1], str) else ""

    def shows(self, name: str) -> bool:
        return any(isinstance(part, FrameSlot) and part.name == name for part in self.parts)

    def fill(self, values: Mapping[str, str]) -> list[Span]:
        """Glue as trusted spans, contents as untrusted ones."""
        return [
            Span(part, is_trusted=True) if isinstance(part, str) else Span(CHANGES[part.change](values[part.name]))
            for part in self.parts
        ]

    def text(self, values: Mapping[str, str]) -> str:
        return "".join(span.text for span in self.fill(values))

    def changing(self, name: str, change: str) -> "Frame":
        """This frame, with `change` in the slots called `name`."""
        return Frame(tuple(FrameSlot(name, change) if part == FrameSlot(name) else part for part in self.parts))


def learned(render: Render, slots: Sequence[str]) -> Frame:
    """The frame of what `render` writes; it must show the first of `slots`. Raises `ConfigError` that names the failing
    probe if there is no such frame."""
    first, second = ({name: f"{salt}{i}q" for i, name in enumerate(slots)} for salt in ("slotmark", "otherslotmark"))
    frame = split_at(render(first), first)
    if not frame.shows(slots[0]):
        raise ConfigError(f"the {slots[0]} is not there as it was given")
    if split_at(render(second), second) != frame:
        raise ConfigError(f"the template writes something else around {_listed(slots)} when their text is another one")
    for name in slots:
        if frame.shows(name):
            frame = _with_change(frame, name, render, first)
    return frame


def _with_change(frame: Frame, name: str, render: Render, marks: Mapping[str, str]) -> Frame:
    """`frame` with the change that the template makes to `name`."""
    rendered = {probe: render({**marks, name: probe}) for probe in PROBES}
    tried = [frame.changing(name, change) for change in CHANGES]
    fitting = [[one.text({**marks, name: probe}) == text for probe, text in rendered.items()] for one in tried]
    for one, fits in zip(tried, fitting, strict=True):
        if all(fits):
            return one
    closest = max(fitting, key=sum)
    probe = PROBES[closest.index(False)]
    raise ConfigError(
        f"the template changes the {name} {probe!r} in a way that cannot be foreseen; "
        f"allowed is to write it {', '.join(CHANGES)}"
    )


def split_at(text: str, marks: Mapping[str, str]) -> Frame:
    """`text` as a frame; marks become slots."""

    def parted(parts: list[str | FrameSlot], named: tuple[str, str]) -> list[str | FrameSlot]:
        name, mark = named
        pieces = (_between(part.split(mark), FrameSlot(name)) if isinstance(part, str) else [part] for part in parts)
        return list(chain.from_iterable(pieces))

    start: list[str | FrameSlot] = [text]
    return Frame(tuple(part for part in reduce(parted, marks.items(), start) if part != ""))


def _between(pieces: Sequence[str], slot: FrameSlot) -> list[str | FrameSlot]:
    """`pieces` with the slot between every two."""
    return [part for piece in pieces for part in (slot, piece)][1:]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"the {name}" for name in names)
