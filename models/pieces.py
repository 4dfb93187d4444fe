"""Pieces: training episodes as the runner shows them, one party's text at a time.

A piece is what one party says in one go: the prompt, one turn of the model, one observation. Pieces are encoded
separately, as the runner does, so the model is trained on exactly the ids it will meet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

PieceKind = Literal["prompt", "model", "tool"]


class Encoder(Protocol):
    """The one thing needed of a tokenizer."""

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """One party's text; `loss` is the weight its tokens are learnt with, 0 = not at all."""

    kind: PieceKind
    text: str
    loss: float


def prompt_piece(question: str) -> Piece:
    """What the model is given: the opening of the tag formats."""
    return Piece("prompt", f"<|user|>{question}<|end|><|assistant|>", loss=0.0)


def encode_pieces(pieces: Sequence[Piece], tokenizer: Encoder) -> tuple[list[int], list[float]]:
    """Ids of an episode, each piece encoded alone, and the weight of each. Control tokens only outside tools."""
    ids: list[int] = []
    weights: list[float] = []
    for piece in pieces:
        piece_ids = tokenizer.encode(piece.text, allow_special=piece.kind != "tool")
        ids += piece_ids
        weights += [piece.loss] * len(piece_ids)
    return ids, weights
