"""Ready-made scripts for tests, demonstrations and benchmarks: a table, chains of given lengths, a random agent."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ramify.core.errors import ContractError
from ramify.core.segment import Ids_T
from ramify.testing.scripts import Probabilities_V, Rule, ScriptedTurn

END = 256
"""End of the sequence in the byte codec."""
LOOK_BACK = 96
"""Bytes of context the random agent reads: more than any of its actions takes."""


def table(lines: Mapping[str, str | Sequence[str]]) -> Rule:
    """Say the line whose key ends the context. The longest such key counts; the key '' matches every context.

    If a line has several texts, the seed chooses one. The rule raises `ContractError` if no key matches.
    """
    keys = sorted(lines, key=len, reverse=True)

    def rule(turn: ScriptedTurn) -> str:
        for key in keys:
            if turn.context.endswith(key):
                line = lines[key]
                return line if isinstance(line, str) else line[turn.seed % len(line)]
        raise ContractError(f"no line for a context that ends in {turn.context[-60:]!r}; keys: {keys!r}")

    return rule


def chains(*lengths: int, tag: str = "calc", answer_tag: str = "answer") -> Rule:
    """Chains of planned lengths: the seed of the first turn chooses one of `lengths`, which is the number of tool
    calls.

    The calls read `1/3`, `2/3`, `3/3`, so that a fork of a chain keeps its length. The answer is the seed's last digit.
    """
    last_call = re.compile(rf".*<{tag}>(\d+)/(\d+)</{tag}>", re.DOTALL)

    def rule(turn: ScriptedTurn) -> str:
        call = last_call.match(turn.context)
        done, length = (int(call[1]), int(call[2])) if call else (0, lengths[turn.seed % len(lengths)])
        if done < length:
            return f"<{tag}>{done + 1}/{length}</{tag}>"
        return f"<{answer_tag}>{turn.seed % 10}</{answer_tag}>"

    return rule


@dataclass(frozen=True, slots=True)
class RandomAgent:
    """A random law over bytes: words, tool calls with short arithmetic between the tags, and answers.

    Sometimes a call is empty, or a turn ends without an answer. For the byte codec only.
    """

    tags: tuple[str, ...] = ("calc",)
    answer_tag: str = "answer"
    act_share: float = 0.5
    """Probability that an action begins, at each byte outside an action."""
    call_share: float = 0.7
    """Probability that the action is a tool call."""
    close_share: float = 0.3
    """Probability that an action's content ends, at each of its bytes."""
    end_share: float = 0.02
    """Probability that the turn ends without an action, at each byte outside an action."""
    max_bytes: int = 12
    """Most bytes of words before an action, and of an action's content."""

    def next(self, ids: Ids_T) -> Probabilities_V:
        """(257,) probabilities of the next byte or the end."""
        tail = ids[-LOOK_BACK:]
        return _law(self, *_place(self, tail[tail < END].astype(np.uint8).tobytes()))


def _place(agent: RandomAgent, tail: bytes) -> tuple[str, bytes, bool]:
    """Where in an action the context ends: the open tag ('' = none), the unfinished part of a tag, whether the limit of
    bytes is reached.

    Directly after the end of an action, the open tag is `/NAME`.
    """
    inside, start = "", 0
    for tag in _tags(agent).finditer(tail):
        inside, start = tag[1].decode(), tag.end()
    content = tail[start:]
    if inside.startswith("/") and content:
        inside = ""
    spelt = content[at:] if (at := content.rfind(b"<")) >= 0 and b">" not in content[at:] else b""
    return inside, spelt, len(content) >= agent.max_bytes


@lru_cache
def _tags(agent: RandomAgent) -> re.Pattern[bytes]:
    names = "|".join(map(re.escape, (*agent.tags, agent.answer_tag)))
    return re.compile(rf"<(/?(?:{names}))>".encode())


@lru_cache(maxsize=4096)
def _law(agent: RandomAgent, inside: str, spelt: bytes, is_full: bool) -> Probabilities_V:
    law = np.zeros(END + 1)
    is_open = bool(inside) and not inside.startswith("/")
    if spelt:
        for tag, share in _openings(agent).items() if not is_open else [(f"</{inside}>", 1.0)]:
            if tag.encode().startswith(spelt):
                law[tag.encode()[len(spelt)]] += share
    elif is_open:
        _spread(law, b"0123456789+-*", 0.0 if is_full else 1 - agent.close_share)
        law[ord("<")] += 1 - law.sum()
    elif inside == f"/{agent.answer_tag}":
        law[END] = 1.0
    if not law.any():
        _spread(law, b"abcde ", 0.0 if is_full else 1 - agent.act_share - agent.end_share)
        law[END] = 0.0 if is_full else agent.end_share
        law[ord("<")] += 1 - law.sum()
    law /= law.sum()
    law.flags.writeable = False
    return law


def _openings(agent: RandomAgent) -> dict[str, float]:
    calls = {f"<{tag}>": agent.call_share / len(agent.tags) for tag in agent.tags}
    return {**calls, f"<{agent.answer_tag}>": 1 - agent.call_share}


def _spread(law: Probabilities_V, symbols: bytes, share: float) -> None:
    for symbol in symbols:
        law[symbol] += share / len(symbols)
