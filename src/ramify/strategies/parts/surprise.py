"""Surprise: before which tokens of a finished path a fork is allowed, and which of these tokens were the least likely.

This is TreeRL's arithmetic. Source: arXiv 2506.11902; THUDM/TreeRL tree_node.py (`TreeNode.mask`,
`get_max_entropy_tokens`) and entropy_chain_local_manager.py.
"""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Literal

import numpy as np
import numpy.typing as npt

from ramify.core.branch import Branch
from ramify.core.errors import ContractError

Surprisals = npt.NDArray[np.float64]
"""(T,) minus the logprob of each token; NaN where no fork is allowed."""
Reading = Literal["text", "token"]
"""Where a word is searched: in the joined text of all tokens, or inside each single token (published)."""
Shortage = Literal["fewer", "repeat"]
"""If there are fewer than n free tokens: make fewer forks, or repeat the same ones (published)."""
Ties = Literal["earlier", "later"]
"""Which of two equal tokens of a tree comes first: the earlier by path and position, or the later (published)."""


def num_free(tokens: Sequence[bytes], words: Sequence[str], *, reading: Reading = "text") -> int:
    """Number of leading tokens before which a fork is allowed: those that begin no later than the first of `words`.

    ASCII letters match in either case.
    """
    lowered = [token.lower() for token in tokens]
    needles = [word.lower().encode() for word in words]
    if reading == "token":
        hits = (i + 1 for i, token in enumerate(lowered) if any(needle in token for needle in needles))
        return next(hits, len(tokens))
    text = b"".join(lowered)
    first = min((at for needle in needles if (at := text.find(needle)) >= 0), default=len(text))
    starts = np.cumsum([0, *map(len, lowered)])[:-1]
    return int(np.searchsorted(starts, first, side="right"))


def surprisals(
    branch: Branch, start: int, words: Sequence[str], *, reading: Reading = "text", max_position: int | None = None
) -> Surprisals:
    """(T,) surprisal of the tokens sampled from `start` on before which a fork is allowed.

    Excluded: the first token of a continuation, since a fork is already there, and tokens at `max_position` or more
    after the prompt. Raises `ContractError` if a logprob is missing.
    """
    own = np.flatnonzero(branch.is_sampled[start:]) + start
    tokens = [branch.codec.token_bytes(int(i)) for i in branch.ids[own]]
    first = 0 if start <= branch.num_prompt else 1
    free = own[first : num_free(tokens, words, reading=reading)]
    if max_position is not None:
        free = free[free < branch.num_prompt + max_position]
    found = np.full(len(branch), np.nan)
    found[free] = -branch.logprobs[free]
    if np.isnan(found[free]).any():
        raise ContractError(f"treerl reads the logprobs of sampled tokens; those of node {branch.node} are missing")
    return found


def fork_positions(
    paths: Sequence[Surprisals], n: int, *, shortage: Shortage = "fewer", ties: Ties = "earlier"
) -> list[tuple[int, int]]:
    """(path, token) of the n most surprising tokens of one tree, the most surprising first. Forks go before these
    tokens.

    Every path offers its n best, the earlier of equal ones first; the tree keeps its n best.
    """
    sign = 1 if ties == "earlier" else -1
    offers = [(-float(paths[i][at]), sign * i, sign * at) for i, at in _offers(paths, n, shortage)]
    return [(abs(i), abs(at)) for _, i, at in sorted(offers)[:n]]


def _offers(paths: Sequence[Surprisals], n: int, shortage: Shortage) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number, surprisals in enumerate(paths):
        best = [at for at in np.argsort(-surprisals, kind="stable").tolist() if surprisals[at] == surprisals[at]][:n]
        found += [(number, at) for at in (islice(cycle(best), n) if shortage == "repeat" else best)]
    return found
