"""Unread: what stands for a part of a run that is not loaded while somebody looks at it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ramify.core.errors import ExportError, StoreError
from ramify.core.tree import Tree

ALLOW = "looking at a run loads nothing that the run names; if you trust whoever made it, --trust loads it"


@dataclass(frozen=True, slots=True)
class UnreadCodec:
    """A tokenizer that is known by name and hash only. Text is shown as the numbers of its tokens."""

    name: str
    sha256: str
    is_exact: bool = True

    @property
    def vocab_size(self) -> int:
        return 2**31 - 1

    @property
    def eos_id(self) -> int:
        return -1

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        raise self._needed()

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(f"\u27e8{int(i)}\u27e9" for i in ids)

    def token_bytes(self, token_id: int) -> bytes:
        raise self._needed()

    def _needed(self) -> StoreError:
        return StoreError(f"this needs the tokenizer {self.name!r}, which was not found or is not built in; {ALLOW}")


@dataclass(frozen=True, slots=True)
class UnreadRule:
    """The rule by which a strategy that is not loaded forks finished paths."""

    strategy: str

    @property
    def max_forks(self) -> int:
        raise self._needed()

    def forks(self, tree: Tree, leaf: int) -> Mapping[int, float]:
        raise self._needed()

    def _needed(self) -> ExportError:
        return ExportError(f"the strategy {self.strategy!r}, which makes balanced shares, is not built in; {ALLOW}")
