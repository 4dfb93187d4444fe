"""No token drifts: every id that runs fed and sampled against their engines' own logs, over 100,000 turns.

The engine writes text at random in the ids of the built-in tokenizer, a real BPE: numbers in one token or two, tags and
control-token spellings in any pieces, characters cut between tokens. Whoever decoded such a turn and encoded it again
would get other ids; the last column says for how many turns. A leg is a run on disk, or one killed again and again;
at its end `ramify check RUN --against LOG` replays it and compares. Turns that only the log holds must be explained:
there are none but where a leg kills, aborts or cancels. The last leg is played by the built-in model.

Exits 1 on any difference, on any unexplained turn, and if there were fewer turns than asked for.

Run: python bench/no_drift.py [--turns N]
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ramify.cli.check import checked_run
from ramify.cli.main import main as ramify
from ramify.config.configure import resolve, to_toml
from ramify.config.run_config import RunConfig
from ramify.core.command import Cancel, Command, Grow, Outcome, Tokens
from ramify.core.engine import Generation, Request
from ramify.core.segment import Ids_T
from ramify.core.strategy import Phase
from ramify.core.tree import ROOT, Tree
from ramify.engines.builtin import FOLDER
from ramify.engines.faults import Delay, Fault
from ramify.engines.logged import read_log
from ramify.engines.scripted import Scripted
from ramify.engines.scripts import Probabilities_V
from ramify.engines.tokenizer import TokenizerFile
from ramify.runner.api import assemble, begin, header_of, resume
from ramify.runner.clock import run_virtual
from ramify.runner.recorder import Recorder
from ramify.store.commit import Writing
from ramify.store.store import FolderStore

TURNS = 100_000
NUM_KILLS = 12
CODEC = TokenizerFile(FOLDER / "tokenizer.json")
TOKENS = [CODEC.token_bytes(i) for i in range(CODEC.vocab_size)]

# -- the engine -------------------------------------------------------------------------------------------------------

NOISE = ("13", "1000", "日本", "🧑\u200d🚀", "e\u0301", "\ufffd", "<|end|>", "<|user|>", " <result>\n13\n</result>", "</")
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
        "<search>who is the 100th</search>": 4,
        "<search>日本 13</search>": 3,
        "<search> </search>": 1,
        "</search>": 1,
        "<answer> 13 </answer>": 1,
    },
    "chat": {CALL % "13+10": 4, CALL % "1é*100": 3, '<tool_call>{"name"</tool_call>': 1, "<think> 13</think>": 1},
}
"""What the engine begins to write by the way of speaking, and how often; `NOISE` comes with each."""
NOISE_SHARE, SLIP_SHARE, END_SHARE = 0.25, 0.02, 0.01
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


def _delay(turn: Any) -> Delay:
    return Delay(call_s=turn.seed % 7, token_s=0.25)


def _struck(*remainders: int) -> Callable[[Any], bool]:
    return lambda turn: turn.seed % 40 in remainders


FAULTS = (
    Fault("abort", when=_struck(0, 1, 2), num_tries=1),
    Fault("abort", when=_struck(3), num_tries=2),
    Fault("abort", when=_struck(4)),
    Fault("error", when=_struck(5), num_tries=1),
    Fault("hang", when=_struck(6), num_tries=1),
    Fault("nan_logprobs", when=_struck(7)),
    Fault("no_tokens", when=_struck(8)),
)

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
    unpredictable = "it forks inside what has been sampled"

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
            commands = [Cancel(self._drawn([c for c, command in tree.pending.items() if isinstance(command, Grow)]))]
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
        inside = np.flatnonzero(is_sampled[1:] & is_sampled[:-1]) + 1
        return Grow(leaf, at=int(self._drawn(inside)), until=until) if len(inside) else Grow(ROOT)

    def _drawn(self, items: Sequence[Any]) -> Any:
        return items[int(self._rng.integers(len(items)))]


CRITIQUE = {"edge": "quotes", "role": "critique", "template": "<|user|>{question} {previous}<|end|><|assistant|>"}
ANYWHERE = {"strategy.name": f"{__file__}:Anywhere", "actions.critique": CRITIQUE}

# -- legs -------------------------------------------------------------------------------------------------------------


def kill_again_and_again(config: RunConfig, path: Path, num_turns: int) -> None:
    """Grow a run in processes that are killed at records drawn at random, the last one left alone."""
    rng = random.Random(config.seed)
    work: Callable[[], object] = lambda: begin(config, path)
    for _ in range(NUM_KILLS):
        if not killed(work, after=rng.randint(1, 5 * num_turns // NUM_KILLS)):
            return
        work = lambda: resume(path)
    work()


def killed(work: Callable[[], object], *, after: int) -> bool:
    """Do `work` in a child that kills itself after so many records; whether it was killed."""
    child = os.fork()
    if not child:
        os.environ["RAMIFY_KILL_AFTER"] = str(after)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def in_virtual_time(config: RunConfig, path: Path, num_turns: int) -> None:
    """Grow a run whose delays, hangs and deadlines take no time."""
    run = assemble(config)
    store = FolderStore.create(path, header_of(run), to_toml(config), writing=Writing(durability="os"))
    try:
        run_virtual(run.grow([Recorder(store).observe]))
    finally:
        store.close()


def at_once(config: RunConfig, path: Path, num_turns: int) -> None:
    begin(config, path)


@dataclass(frozen=True, slots=True)
class Leg:
    """One run, or one that is killed and resumed."""

    name: str
    preset: str
    turns_a_tree: float
    """Measured; how many problems the leg takes follows from it."""
    share: float = 1.0
    """Of the turns, as a weight."""
    flags: Mapping[str, Any] = field(default_factory=dict[str, Any])
    grow: Callable[[RunConfig, Path, int], None] = at_once
    loses_turns: bool = False
    """Whether the log may hold turns that the run does not, and must hold some."""

    def config(self, path: Path, num_turns: int) -> RunConfig:
        flags = {
            "prompts": max(2, round(num_turns / self.turns_a_tree)),
            "task.split": "train",
            "engine.name": f"{__file__}:Scribe",
            "engine.log": str(path.with_suffix(".log")),
            "growth.max_response_tokens": 200,
            "growth.max_tool_calls": 12,
            "growth.max_turns": 16,
            "durability": "os",
        }
        return resolve(preset=self.preset, flags={**flags, **self.flags}).config


SEARCH = {"task.name": "hops", "engine.options": {"speech": "search"}, "growth.max_observation_tokens": 20}
CHAT = {"format": "chat", "format_options": {"template": str(FOLDER)}, "engine.options": {"speech": "chat"}}
SHAKY = {
    "engine.options": {"is_shaky": True},
    "strategy.options": {"cancels": True},
    "delivery": "eager",
    "limits.seconds": 400.0,
    "max_failed_share": 1.0,
}
LEGS = (
    Leg("forks: arpo", "arpo", 100),
    Leg("forks: offline", "offline", 30),
    Leg("forks: tree_grpo", "tree_grpo", 30),
    Leg("splits: treerl", "treerl", 100),
    Leg("splits: anywhere", "chains", 80, flags=ANYWHERE),
    Leg("segments: treepo", "treepo", 100, flags={"strategy.options.segment_tokens": 12}),
    Leg("segments: spo", "spo", 300, flags={"strategy.options.segment_tokens": 12}),
    Leg("resume: offline", "offline", 30, grow=kill_again_and_again, loses_turns=True),
    Leg("resume: anywhere", "chains", 80, flags=ANYWHERE, grow=kill_again_and_again, loses_turns=True),
    Leg("abort: anywhere", "chains", 80, flags={**ANYWHERE, **SHAKY}, grow=in_virtual_time, loses_turns=True),
    Leg("tags: arpo", "arpo", 100, flags={"growth.no_action": "observe", "growth.max_observation_tokens": 5}),
    Leg("tags: search_r1", "search_r1", 30, flags=SEARCH),
    Leg("chat", "offline", 30, flags=CHAT),
    Leg("builtin model", "arpo", 40, share=0.1, flags={"engine.name": "builtin"}),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one leg."""

    turns: int
    ids_fed: int
    ids_sampled: int
    differences: int
    only_in_log: int
    drifting: int
    """Turns whose ids are others when their text is encoded again."""
    seconds: float


def played(leg: Leg, folder: Path, num_turns: int) -> Result:
    """Grow a leg's run and hold it against its log."""
    began = time.process_time()
    run = folder / leg.name.replace(": ", "_").replace(" ", "_")
    log = run.with_suffix(".log")
    leg.grow(leg.config(run, num_turns), run, num_turns)
    checked = checked_run(run, log)
    assert checked.against is not None
    for breach in checked.breaches[:5]:
        print(f"{leg.name}: {breach}")
    return Result(
        checked.against.turns,
        checked.against.ids_fed,
        checked.against.ids_sampled,
        len(checked.breaches),
        checked.against.only_in_log,
        sum(is_drifting(entry.sampled) for entry in read_log(log)),
        time.process_time() - began,
    )


def is_drifting(ids: list[int]) -> bool:
    return CODEC.encode(CODEC.decode(ids), allow_special=True) != ids


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=TURNS, help=f"at least so many in all (default {TURNS:,})")
    num_turns = parser.parse_args(arguments).turns
    weights = sum(leg.share for leg in LEGS)
    print(f"{'leg':18}{'turns':>9}{'ids fed':>13}{'ids sampled':>13}{'differences':>13}{'only in log':>13}{'drift':>8}{'s':>7}")
    for leg in LEGS:
        with tempfile.TemporaryDirectory() as folder:
            r = played(leg, Path(folder), round(num_turns * leg.share / weights))
            print(f"{leg.name:18}{r.turns:9,}{r.ids_fed:13,}{r.ids_sampled:13,}{r.differences:13,}{r.only_in_log:13,}{r.drifting/max(1,r.turns):8.0%}{r.seconds:7.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
