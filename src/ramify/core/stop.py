"""Stop words: one vocabulary for how a path ends, used by store, rows, metrics and viewer.

Sources: `docs/concepts/growth.md` (words of ARPO, AT2PO, TreePO, Search-R1 and ours); step search adds three. `closed`
means that the strategy or a prune rule ended the path; the reason is in the node's notes. `roulette` is random
termination (a coin): by a strategy, or by `growth.keep` where a prune rule would have closed the path.
"""

from dataclasses import dataclass
from typing import Final

from ramify.core.errors import ContractError, nearest


@dataclass(frozen=True, slots=True)
class StopWord:
    """What a stop word implies for training and metrics."""

    word: str
    when: str
    """What ended the path."""
    is_trainable: bool
    """Whether the leaf may be trained: its own tokens or the strategy's rule caused its end."""
    is_truncated: bool
    """Whether the leaf counts as cut off rather than finished."""
    is_failure: bool = False
    """Whether the leaf is no sample of the policy. If so, it never counts as a leaf."""


STOP_WORDS: dict[str, StopWord] = {
    stop.word: stop
    for stop in (
        StopWord("end_of_sequence", "the model ended its turn", is_trainable=True, is_truncated=False),
        StopWord("answer", "the model gave its answer: the answer tag closed", is_trainable=True, is_truncated=False),
        StopWord(
            "length",
            "`growth.max_response_tokens` was reached by actions and observations",
            is_trainable=True,
            is_truncated=True,
        ),
        StopWord("context_full", "the context of the model is full", is_trainable=True, is_truncated=True),
        StopWord(
            "turn_limit",
            "the last of `growth.max_turns` turns asked for a tool, or did not end",
            is_trainable=True,
            is_truncated=True,
        ),
        StopWord(
            "tool_limit",
            "the model asked for more calls than `growth.max_tool_calls`",
            is_trainable=True,
            is_truncated=True,
        ),
        StopWord(
            "empty_tool_call",
            "a tool call was empty or could not be read, and the growth rules end such a path",
            is_trainable=True,
            is_truncated=False,
        ),
        StopWord(
            "tool_failed",
            'a tool hung or crashed, and `growth.tool_failed = "end"`',
            is_trainable=True,
            is_truncated=False,
        ),
        StopWord("done", "the environment said that the path is done", is_trainable=True, is_truncated=False),
        StopWord("env_limit", "the environment reached a limit of its own", is_trainable=True, is_truncated=True),
        StopWord("repetition", "a prune rule found that the path repeats itself", is_trainable=True, is_truncated=True),
        StopWord(
            "no_valid_step", "a prune rule of a step search found no valid step", is_trainable=True, is_truncated=False
        ),
        StopWord(
            "tool_errors",
            "a prune rule of a step search counted too many tool errors",
            is_trainable=True,
            is_truncated=False,
        ),
        StopWord(
            "depth_limit", "a prune rule of a step search found the path too deep", is_trainable=True, is_truncated=True
        ),
        StopWord(
            "closed",
            "another prune rule or the strategy ended the path; the node's notes hold the reason",
            is_trainable=True,
            is_truncated=True,
        ),
        StopWord(
            "roulette",
            "random termination ended the path (`planned` or `growth.keep`); nobody judges it, and its return is 0",
            is_trainable=True,
            is_truncated=True,
        ),
        StopWord(
            "budget",
            "a limit of the tree or of the run was reached inside the path",
            is_trainable=False,
            is_truncated=True,
        ),
        StopWord("deadline", "the seconds of the tree were used up", is_trainable=False, is_truncated=True),
        StopWord(
            "cancelled",
            "the strategy or the user cancelled the command",
            is_trainable=False,
            is_truncated=True,
            is_failure=True,
        ),
        StopWord(
            "engine_error",
            "the engine failed, and its retries were used up",
            is_trainable=False,
            is_truncated=True,
            is_failure=True,
        ),
        StopWord(
            "replay_diverged",
            "a tool gave another result when its calls were replayed",
            is_trainable=False,
            is_truncated=True,
            is_failure=True,
        ),
    )
}

ANSWERED: Final = frozenset({"answer", "end_of_sequence", "done"})
"""Stop words of complete paths: the model ended them with its answer, or the environment says that they are done."""


GIVEN_UP: Final = frozenset({"closed", "roulette"})
"""Stop words of paths that a rule, the strategy or random termination ended: they have no answer at their ends."""
KEPT: Final = "kept"
"""Note on a node whose path a prune rule would have ended, but random termination let go on. Its value is the
probability of going on."""
ROULETTE: Final = "roulette"
"""Stop word of a path that random termination ended. Nobody judges such a path; in a forest its return is 0. Also the
rule of a decision that lets a path go on by random termination (`core.command.roulette`)."""


def stop_word(word: str) -> StopWord:
    """Look up a stop word. An unknown word raises `ContractError`, which names the nearest known word."""
    try:
        return STOP_WORDS[word]
    except KeyError:
        raise ContractError(f"unknown stop word {word!r}; {nearest(word, STOP_WORDS)}") from None
