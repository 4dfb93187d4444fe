"""Token document: the segments of some nodes of a tree as plain JSON values, exact to the bit.

A segment has the names and values that it has on disk: ids are little-endian int32, logprobs and measures little-endian
float32, in base64, but grouped: first the first bytes of all numbers, then the second ones, and so on. So they compress
better: a page of 1,000 nodes with 200 tokens each has 2.61 MB and not 3.09 (`bench/viewer.py`). The spelling of each id
stands once, in a vocabulary: as text, or as hex where its bytes are no UTF-8, which is so where a character is spread
over several tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from ramify.core.codec import Codec
from ramify.core.segment import Segment
from ramify.core.tree import Tree
from ramify.store.recording import SEGMENT

MAX_NODES: Final = 256
MAX_TOKENS: Final = 40_000
"""A document holds nodes up to these numbers, at least one."""

Document = dict[str, Any]


def chunks(tree: Tree) -> list[int]:
    """The first node of each token document of a tree."""
    firsts, num_tokens = [0], 0
    for node in range(len(tree)):
        own = sum(map(len, tree.segments(node)))
        if node - firsts[-1] >= MAX_NODES or (num_tokens + own > MAX_TOKENS and node > firsts[-1]):
            firsts.append(node)
            num_tokens = 0
        num_tokens += own
    return firsts


def token_document(tree: Tree, number: int, *, firsts: Sequence[int] | None = None) -> Document:
    """The `number`-th token document. `firsts`: the `chunks` of the tree, for a caller that has them. Raises
    `IndexError` if there is no such document."""
    firsts = chunks(tree) if firsts is None else firsts
    if not 0 <= number < len(firsts):
        raise IndexError(f"tree has token documents 0 to {len(firsts) - 1}, not {number}")
    first, last = firsts[number], [*firsts, len(tree)][number + 1]
    vocabularies: dict[str, dict[int, list[Any]]] = {}
    nodes = [_node(tree, node, vocabularies) for node in range(first, last)]
    return {
        "first": first,
        "vocabularies": {name: list(words.values()) for name, words in vocabularies.items()},
        "nodes": nodes,
    }


def _node(tree: Tree, node: int, vocabularies: dict[str, dict[int, list[Any]]]) -> Document:
    """The segments of a node, and the name of their vocabulary. Mutates `vocabularies`."""
    codec = tree.codec_of(node)
    words = vocabularies.setdefault(codec.name, {})
    for token in _ids(tree, node):
        if token not in words:
            words[token] = [token, *_spelling(codec, token)]
    return {"codec": codec.name, "segments": [segment_values(segment) for segment in tree.segments(node)]}


def segment_values(segment: Segment) -> Document:
    """A segment as it stands on disk, with its numbers grouped by bytes."""
    stored = SEGMENT.pack(segment)
    grouped = msgspec.structs.replace(
        stored,
        ids=grouped_bytes(stored.ids),
        logprobs=None if stored.logprobs is None else grouped_bytes(stored.logprobs),
        measures={name: grouped_bytes(values) for name, values in stored.measures.items()},
    )
    values = msgspec.to_builtins(grouped)
    return values if segment.seed is None else values | {"seed": str(segment.seed)}


def grouped_bytes(data: bytes) -> bytes:
    """Numbers of four bytes each, grouped by the place of their bytes."""
    return np.frombuffer(data, np.uint8).reshape(-1, 4).T.tobytes()


def _ids(tree: Tree, node: int) -> Iterator[int]:
    return (int(token) for segment in tree.segments(node) for token in segment.ids)


def _spelling(codec: Codec, token: int) -> tuple[str | None, str] | tuple[str]:
    """The text of an id; or None and its bytes in hex. A tokenizer that was not read spells numbers."""
    try:
        data = codec.token_bytes(token)
    except Exception:  # noqa: BLE001 - boundary to a tokenizer, which may be a stand-in or not know the id
        return (codec.decode([token]),)
    try:
        return (data.decode(),)
    except UnicodeDecodeError:
        return (None, data.hex())
