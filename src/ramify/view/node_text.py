"""Node text: what a node says, in a form for people: without the tags around a text that is one element.

`<calc>4-3</calc>` becomes `calc 4-3`, and a tool's `<result> 1 : 2 14 </result>` becomes `1 : 2 14`. Any other text
stays as it is. The texts are untrusted: show them by `core.visible`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ramify.core.codec import Codec
from ramify.core.segment import Segment
from ramify.core.tree import Tree

_ELEMENT = re.compile(r"<(\w+)>(.*)</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class NodeText:
    """The texts of one node."""

    said: str
    """What the model sampled, or a demonstration wrote."""
    observed: str = ""
    """What a tool or a template answered; empty = nothing."""


def node_text(tree: Tree, node: int) -> NodeText:
    """The texts of a node on the tree."""
    return step_text(tree.segments(node), tree.codec_of(node))


def step_text(segments: Iterable[Segment], codec: Codec) -> NodeText:
    """The texts of a step, which need not be on its tree yet."""
    parts: dict[bool, list[int]] = {True: [], False: []}
    for segment in segments:
        if segment.origin != "prompt":
            parts[segment.origin != "given"] += segment.ids.tolist()
    name, said = _unwrapped(codec.decode(parts[True]))
    _, observed = _unwrapped(codec.decode(parts[False]))
    return NodeText(f"{name} {said}" if name else said, observed)


def _unwrapped(text: str) -> tuple[str, str]:
    """Name and content of a text that is one element; a text that is not has no name."""
    element = _ELEMENT.fullmatch(text.strip())
    if element is None or f"</{element[1]}>" in element[2]:
        return "", text
    return element[1], element[2].strip()
