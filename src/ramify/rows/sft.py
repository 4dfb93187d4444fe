"""SFT: finished trees as examples for supervised training, as tokens and as messages.

An example is the path to one leaf. By default, each leaf that its run keeps gives one. The agent's own tokens are
trained, sampled or written (demonstrations, stored answers), once over all examples of a tree. Prompts, observations
and forced text are never trained. The byte codec has no ids of a model, so examples of its trees are messages only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ramify.core.branch import Branch, Piece
from ramify.core.segment import Ids_T, Origin
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import Tree
from ramify.rows.files import write_lines
from ramify.rows.records import plain
from ramify.rows.select import is_selected

Leaves = Literal["kept", "written", "best"]
"""kept: every leaf that `rows.leaves` of its run selected. best: the leaves of every tree with the highest reward.
written: every leaf with written tokens on its path; only these tokens are trained."""
TRAINED: Final[Mapping[Leaves, tuple[Origin, ...]]] = {
    "kept": ("written", "sampled"),
    "best": ("written", "sampled"),
    "written": ("written",),
}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Example:
    """One example."""

    uid: str
    leaf: int
    """Number of the leaf in the canonical order of its tree."""
    reward: float | None
    """None = not judged."""
    messages: tuple[Mapping[str, Any], ...]
    """The chat. Messages of the assistant that are not trained have weight 0."""
    ids: Ids_T | None
    """(T,) None = the codec is not the model's."""
    mask: npt.NDArray[np.bool_] | None
    """(T,) which tokens are trained. A token shared by several examples of a tree is trained in the first one."""
    public: Mapping[str, Any]
    """The problem's public columns."""


def examples(
    tree: Tree, *, leaves: Leaves = "kept", num_leaves: int = 1, min_reward: float | None = None
) -> list[Example]:
    """Examples of a finished tree, in canonical order. Examples without anything to train are left out.

    `num_leaves` limits the number of best leaves; ties go to the first. `min_reward` leaves out leaves with a lower
    reward or none. Mutates nothing.
    """
    chosen = [leaf for leaf in tree.leaves() if _is_wanted(tree, leaf, TRAINED[leaves], min_reward)]
    if leaves == "kept":
        chosen = [leaf for leaf in chosen if is_selected(tree, leaf)]
    if leaves == "best":
        judged = [leaf for leaf in chosen if tree.reward(leaf) is not None]
        best = sorted(judged, key=lambda leaf: -(tree.reward(leaf) or 0.0))[:num_leaves]
        chosen = [leaf for leaf in chosen if leaf in best]
    number = {node: i for i, node in enumerate(tree.subtree())}
    seen: set[int] = set()
    made: list[Example] = []
    for leaf in chosen:
        branch = tree.branch(leaf)
        is_trained = [p.node not in seen and _is_trainable(tree, p, TRAINED[leaves]) for p in branch.pieces]
        seen.update(p.node for p in branch.pieces)
        if any(is_trained):
            made.append(_example(tree, branch, is_trained, number[leaf]))
    return made


def record(example: Example) -> dict[str, Any]:
    """An example as JSON data: `uid`, `leaf`, `reward`, `messages`, `public`, and, if it has ids, `input_ids` and
    `loss_mask`."""
    tokens = {}
    if example.ids is not None and example.mask is not None:
        tokens = {"input_ids": example.ids.tolist(), "loss_mask": example.mask.astype(int).tolist()}
    return {
        "uid": example.uid,
        "leaf": example.leaf,
        "reward": example.reward,
        "messages": plain(example.messages, "messages"),
        **tokens,
        "public": plain(example.public, "public"),
    }


def write(
    trees: Iterable[Tree],
    path: Path,
    *,
    leaves: Leaves = "kept",
    num_leaves: int = 1,
    min_reward: float | None = None,
    force: bool = False,
) -> int:
    """Write the examples of `trees` to `path`, one per line, and return their number.

    - `num_leaves`: leaves of each tree, for `leaves = "best"`.
    - `min_reward`: lowest reward of an example; None = any.
    - `force`: whether to replace what an earlier export made; anything else there raises `ExportError`.
    """
    found = (
        record(example)
        for tree in trees
        for example in examples(tree, leaves=leaves, num_leaves=num_leaves, min_reward=min_reward)
    )
    return write_lines(found, path, force=force)


def _is_wanted(tree: Tree, leaf: int, origins: Sequence[Origin], min_reward: float | None) -> bool:
    """Whether a leaf has something to train, an end that may be trained, and a high enough reward."""
    reward = tree.reward(leaf)
    if min_reward is not None and (reward is None or reward < min_reward):
        return False
    if not STOP_WORDS[tree.stop(leaf) or ""].is_trainable:
        return False
    return any(_is_trainable(tree, piece, origins) for piece in tree.branch(leaf).pieces)


def _is_trainable(tree: Tree, piece: Piece, origins: Sequence[Origin]) -> bool:
    return len(piece.segment) > 0 and piece.segment.origin in origins and tree.role(piece.node) == "policy"


def _example(tree: Tree, branch: Branch, is_trained: Sequence[bool], number: int) -> Example:
    lengths = [len(piece.segment) for piece in branch.pieces]
    is_exact = branch.codec.is_exact
    return Example(
        uid=tree.problem.uid,
        leaf=number,
        reward=tree.reward(branch.node),
        messages=_messages(branch, is_trained),
        ids=branch.ids if is_exact else None,
        mask=np.repeat(np.array(is_trained, bool), lengths) if is_exact else None,
        public=tree.problem.public,
    )


def _messages(branch: Branch, is_trained: Sequence[bool]) -> tuple[Mapping[str, Any], ...]:
    """The messages that the segments render. If a trained segment renders none, each turn of text without messages
    becomes one message."""
    pieces = list(zip(branch.pieces, is_trained, strict=True))
    is_rendered = all(piece.segment.message is not None for piece, trained in pieces if trained)
    found: list[Mapping[str, Any]] = []
    for (has_message, role), turn in groupby(pieces, key=_kind):
        said = list(turn)
        if has_message:
            found += [_weighed({**(p.segment.message or {}), **_beside([p])}, trained) for p, trained in said]
        elif not is_rendered:
            text = branch.codec.decode(np.concatenate([p.segment.ids for p, _ in said]))
            message = {"role": role, "content": text, **_beside([p for p, _ in said])}
            found.append(_weighed(message, any(trained for _, trained in said)))
    return tuple(found)


def _kind(said: tuple[Piece, bool]) -> tuple[bool, str]:
    """Whether a piece renders a message, and whose turn it is."""
    return said[0].segment.message is not None, _role(said[0])


def _beside(pieces: Sequence[Piece]) -> dict[str, Any]:
    """What tools returned besides the text of an observation: `metadata` and `attachments`, if there are any."""
    calls = [piece.segment.tool_call for piece in pieces if piece.segment.tool_call is not None]
    metadata = {key: value for call in calls for key, value in call.metadata.items()}
    attachments = [name for piece in pieces for name in piece.segment.attachments]
    return {**({"metadata": metadata} if metadata else {}), **({"attachments": attachments} if attachments else {})}


def _weighed(message: Mapping[str, Any], is_trained: bool) -> Mapping[str, Any]:
    """The message, with weight 0 if the assistant said it and it is not trained, as in OpenAI's fine-tuning format."""
    return {**message, "weight": 0} if message.get("role") == "assistant" and not is_trained else message


def _role(piece: Piece) -> str:
    match piece.segment.origin:
        case "prompt":
            return "user"
        case "sampled" | "written":
            return "assistant"
        case "given":
            call = piece.segment.tool_call
            return "user" if call is None or call.is_turn else "tool"
