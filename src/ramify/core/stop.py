"""Stop words: one vocabulary for how a path ends, used by store, rows, metrics and viewer.

Sources: `docs/rollouts.md` (ARPO, AT2PO, TreePO, Search-R1 words and ours); step search adds its three; `closed` is the
strategy's or a prune rule's own end, with its reason in the node's notes, and `roulette` is random termination by a
coin: a strategy's, or that of `growth.keep` where a prune rule would have closed the path.
"""

from dataclasses import dataclass
from typing import Final

from ramify.core.errors import ContractError, nearest


@dataclass(frozen=True, slots=True)
class StopWord:
    """What a stop word implies for training and metrics."""

    word: str
    is_trainable: bool
    """Whether the leaf may be trained: its end was caused by its own tokens, or by the strategy's rule."""
    is_truncated: bool
    """Whether the leaf counts as cut off rather than finished."""
    is_failure: bool = False
    """Whether the leaf is no sample of the policy at all, so that it never counts as a leaf."""


STOP_WORDS: dict[str, StopWord] = {
    stop.word: stop
    for stop in (
        StopWord("end_of_sequence", is_trainable=True, is_truncated=False),
        StopWord("answer", is_trainable=True, is_truncated=False),
        StopWord("length", is_trainable=True, is_truncated=True),
        StopWord("context_full", is_trainable=True, is_truncated=True),
        StopWord("turn_limit", is_trainable=True, is_truncated=True),
        StopWord("tool_limit", is_trainable=True, is_truncated=True),
        StopWord("empty_tool_call", is_trainable=True, is_truncated=False),
        StopWord("tool_failed", is_trainable=True, is_truncated=False),
        StopWord("repetition", is_trainable=True, is_truncated=True),
        StopWord("no_valid_step", is_trainable=True, is_truncated=False),
        StopWord("tool_errors", is_trainable=True, is_truncated=False),
        StopWord("depth_limit", is_trainable=True, is_truncated=True),
        StopWord("closed", is_trainable=True, is_truncated=True),
        StopWord("roulette", is_trainable=True, is_truncated=True),
        StopWord("budget", is_trainable=False, is_truncated=True),
        StopWord("deadline", is_trainable=False, is_truncated=True),
        StopWord("cancelled", is_trainable=False, is_truncated=True, is_failure=True),
        StopWord("engine_error", is_trainable=False, is_truncated=True, is_failure=True),
        StopWord("replay_diverged", is_trainable=False, is_truncated=True, is_failure=True),
    )
}

ANSWERED: Final = frozenset({"answer", "end_of_sequence"})
"""Stop words of paths that the model ended: a whole answer stands at their ends."""


GIVEN_UP: Final = frozenset({"closed", "roulette"})
"""Stop words of paths that a rule, the strategy or a coin ended: there is no answer at their ends."""
KEPT: Final = "kept"
"""Note of a node whose path a prune rule would have ended, and a coin did not: the probability of the coin."""
ROULETTE: Final = "roulette"
"""Stop word of a path that a coin ended: nobody judges it, and in a forest its return is 0. Also the rule of a decision
that lets a path go on by a coin (`core.command.roulette`)."""


def stop_word(word: str) -> StopWord:
    """Look a stop word up; an unknown one is a `ContractError` that names the nearest."""
    try:
        return STOP_WORDS[word]
    except KeyError:
        raise ContractError(f"unknown stop word {word!r}; {nearest(word, STOP_WORDS)}") from None
