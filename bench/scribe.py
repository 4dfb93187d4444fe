"""What is grown where nothing may drift: an engine that scribbles in a BPE's ids, a strategy that forks anywhere.

The engine writes phrases in the ids of the built-in tokenizer: numbers in one token or two, tags and control-token
spellings in any pieces, characters cut between tokens. Named in configurations as `scribe.py:Scribe`, `:Anywhere`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ramify.core.command import Cancel, Command, Grow, Outcome, Tokens
from ramify.core.engine import Generation, Request
from ramify.core.segment import Ids_T
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.edge.retries import POLICY
from ramify.engines.builtin import FOLDER
from ramify.engines.tokenizer import TokenizerFile
from ramify.testing.planned_faults import Delay, Fault, FaultKind
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import Probabilities_V, ScriptedTurn

CODEC = TokenizerFile(FOLDER / "tokenizer.json")
TOKENS = [CODEC.token_bytes(i) for i in range(CODEC.vocab_size)]

# -- the engine -------------------------------------------------------------------------------------------------------

NOISE = ("13", "1000", "日本", "🧑\u200d🚀", "e\u0301", "\ufffd", "<|end|>", "<|user|>", " <result>\n13", "</")
CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "%s"}}</tool_call>'
PHRASES: Mapping[str, Mapping[str, float]] = {
    "tags": {
        "<calc>13 + 10</calc>": 4,
        "<calc>100-2</calc>": 3,
        "<calc>1é*0</calc>": 2,
        "<calc></calc>": 1,
        "</calc>": 1,
        "<answer>13</answer>": 1,
    },
    "search": {
        "<search>fikol 's boss 100</search>": 4,
        "<search>日本 13</search>": 3,
        "<search> </search>": 1,
        "</search>": 1,
        "<answer> 13 </answer>": 1,
    },
    "chat": {CALL % "13+10": 4, CALL % "1é*100": 3, '<tool_call>{"name"</tool_call>': 1, "<think> 13</think>": 1},
}
"""What the engine begins to write by the way of speaking, and how often; `NOISE` comes with each."""
NOISE_SHARE, SLIP_SHARE, END_SHARE = 0.25, 0.01, 0.01
"""Probability that a phrase is noise, of a token at random at each token, and that this is the end of the sequence."""


class Scribbler:
    """A law over the ids of a BPE: phrases in any pieces that spell them, broken off now and then."""

    def __init__(self, speech: str) -> None:
        said, total = PHRASES[speech], sum(PHRASES[speech].values())
        self._weights = {phrase.encode(): (1 - NOISE_SHARE) * weight / total for phrase, weight in said.items()}
        self._weights |= {phrase.encode(): NOISE_SHARE / len(NOISE) for phrase in NOISE}
        self._begun = {phrase[:size] for phrase in self._weights for size in range(1, len(phrase))}
        self._longest = max(map(len, self._begun))
        self._law = lru_cache(maxsize=None)(self._law_behind)

    def next(self, ids: Ids_T) -> Probabilities_V:
        """(V,) probabilities of the next token: what goes on with the longest phrase that has been begun."""
        tail = b"".join([TOKENS[i] for i in ids[-self._longest :].tolist()])
        sizes = range(min(len(tail), self._longest), 0, -1)
        return self._law(next((tail[-size:] for size in sizes if tail[-size:] in self._begun), b""))

    def _law_behind(self, begun: bytes) -> Probabilities_V:
        """A piece is as likely as it is long, so that most words are short and every cut happens."""
        law = np.zeros(len(TOKENS))
        for phrase, weight in self._weights.items():
            if phrase.startswith(begun) and phrase != begun:
                rest = phrase[len(begun) :]
                sizes = np.array([len(token) * rest.startswith(token) for token in TOKENS])
                law += weight * sizes / sizes.sum()
        slip = np.full(len(TOKENS), (1 - END_SHARE) / len(TOKENS))
        slip[CODEC.eos_id] += END_SHARE
        return (1 - SLIP_SHARE) * law / law.sum() + SLIP_SHARE * slip


class Scribe(Scripted):
    """Speaks by a `Scribbler`. A shaky one takes time, aborts, hangs, returns junk and has a new version ever so often.

    Which requests it fails follows from their seeds.
    """

    def __init__(self, speech: str = "tags", *, is_shaky: bool = False) -> None:
        steady: dict[str, Any] = {"codec": CODEC, "block_size": 64}
        shaky: dict[str, Any] = {"faults": FAULTS, "delay": _delay, "version": 0} if is_shaky else {}
        super().__init__(Scribbler(speech), **steady, **shaky)

    async def generate(self, request: Request) -> Generation:
        if self.version is not None:
            self.version = self.num_calls // 20
        return await super().generate(request)


def _delay(turn: ScriptedTurn) -> Delay:
    return Delay(call_s=turn.seed % 7, token_s=0.25)


def _fault(kind: FaultKind, remainders: Iterable[int], num_tries: int | None = None) -> Fault:
    return Fault(kind, when=lambda turn: turn.seed % REMAINDERS in remainders, num_tries=num_tries)


REMAINDERS = 40
FAULTS = (
    _fault("abort", (0, 1, 2), 1),
    _fault("abort", (3,), 2),
    _fault("abort", (4,)),
    _fault("error", (5,), 1),
    _fault("hang", (6,), 1),
    _fault("nan_logprobs", (7,)),
    _fault("no_tokens", (8,)),
)
SPOILT = {0: 1, 1: 1, 2: 1, 3: 2, 4: POLICY.max_tries, 7: 1, 8: 1}
"""Generations of a shaky engine that nobody can use, by the remainder of their seed; errors and hangs return none."""

# -- a strategy that forks anywhere -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnywhereConfig:
    rounds: int = 6
    width: int = 4
    cancels: bool = False
    """Whether commands are given up while they are carried out."""


class Anywhere:
    """Rounds of growths at random: fresh chains, forks inside any run, further steps, critiques, cancellations."""

    Config = AnywhereConfig
    measures: frozenset[str] = frozenset()
    is_order_free = False
    post_hoc_reason = "it forks inside what has been sampled"

    def __init__(self, config: AnywhereConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._rng = rng
        self._num_open = 0
        self._num_rounds = 0

    def ask(self, tree: Tree) -> Sequence[Command]:
        commands: list[Command] = []
        if not self._num_open:
            self._num_rounds += 1
            is_first = self._num_rounds == 1
            commands = [Grow(ROOT) if is_first else self._growth(tree) for _ in range(self._config.width)]
        elif self._config.cancels and self._rng.random() < 0.3:
            growing = [c for c, command in tree.pending.items() if isinstance(command, Grow)]
            commands = [Cancel(c) for c in growing[-1:]]
        self._num_open += len(commands)
        return commands

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        self._num_open -= 1

    def is_done(self, tree: Tree) -> bool:
        return not self._num_open and self._num_rounds == self._config.rounds

    def phase(self, tree: Tree) -> Phase:
        return Phase("growing", self._num_rounds)

    def _growth(self, tree: Tree) -> Grow:
        until = self._drawn(["end", "step", Tokens(1), Tokens(5)])
        leaves, draw = tree.leaves(), self._rng.random()
        if draw < 0.15 or not leaves:
            return Grow(ROOT)
        if draw < 0.3:
            return Grow(self._drawn(tree.expandable()), until=until)
        leaf = self._drawn(leaves)
        if draw < 0.45:
            return Grow(leaf, action="critique")
        is_sampled = tree.branch(leaf).is_sampled
        inside = (np.flatnonzero(is_sampled[1:] & is_sampled[:-1]) + 1).tolist()
        return Grow(leaf, at=self._drawn(inside), until=until) if inside else Grow(ROOT)

    def _drawn(self, items: Sequence[Any]) -> Any:
        return items[int(self._rng.integers(len(items)))]
