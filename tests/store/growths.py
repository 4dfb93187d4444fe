"""Random values of the core, random live growths with their records, and a way to compare them bit for bit."""

import copy
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from ramify.core.codec import ByteCodec
from ramify.core.command import Cancel, Close, Command, Fork, Grow, Judge, Option, Outcome, Score, Tokens
from ramify.core.errors import ContractError
from ramify.core.growth import Done, Ending, Failure, Growth, GrowthRules, Scored
from ramify.core.problem import Problem
from ramify.core.segment import Finish, FinishKind, Origination, Sampling, Segment, ToolCall, Usage, token_array
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import ROOT, Step, Tree
from ramify.store import recording
from ramify.store.records import Header, TreeRecord, WeightsValue

CODEC = ByteCodec(is_exact=True)
RULES = GrowthRules(words=("</calc>", "</answer>"), quoting=frozenset({"critique"}))

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
FLOATS = st.floats(width=64)
LOGPROB_KINDS = st.sampled_from([None, "raw", "scaled"])
COUNTS = st.integers(0, 2**31 - 1)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT | st.sampled_from(["$int", "$map", "$tuple"]), inner, max_size=3)
        | st.dictionaries(st.integers(), inner, max_size=2)
    ),
    max_leaves=6,
)
COLUMNS = st.dictionaries(TEXT | st.sampled_from(["$float", "$bytes"]), DATA, max_size=2)
NAMED_FLOATS = st.lists(st.tuples(TEXT, FLOATS), max_size=2).map(tuple)

HEADER = Header(
    library="0.1.0",
    config_hash="0" * 64,
    weights=(WeightsValue(engine="scripted", codec=CODEC.name, codec_sha256=CODEC.sha256),),
    seed=1,
    delivery="ordered",
    isolation="none",
    created=1.7e9,
)


def same(value: Any) -> Any:
    """`value` as something that compares by every bit: arrays by their bytes, NaN equal to itself, -0.0 not to 0.0."""
    match value:
        case np.ndarray():
            return (str(value.dtype), value.shape, value.tobytes())
        case float():
            return ("float", "nan" if math.isnan(value) else value.hex())
        case Mapping():
            return ("map", [(same(key), same(item)) for key, item in value.items()])
        case list() | tuple():
            return (type(value).__name__, [same(item) for item in value])
        case bool() | int():
            return (type(value).__name__, value)
        case _ if is_dataclass(value):
            return (type(value).__name__, [(f.name, same(getattr(value, f.name))) for f in fields(value)])
        case _:
            return value


# -- values -----------------------------------------------------------------------------------------------------------


@st.composite
def arrays(draw: st.DrawFn, num: int) -> np.ndarray:
    """(num,) float32 of any bits, NaN payloads and infinities among them."""
    return np.frombuffer(draw(st.binary(min_size=4 * num, max_size=4 * num)), np.float32)


@st.composite
def tool_calls(draw: st.DrawFn) -> ToolCall:
    status = draw(st.sampled_from(["ok", "empty", "error", "timeout", "crashed", "refused", "invalid"]))
    attachments = tuple(draw(st.lists(TEXT, max_size=2)))
    return ToolCall(draw(TEXT), draw(TEXT), status, draw(TEXT), draw(FLOATS), draw(COUNTS), draw(COLUMNS), attachments)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    ids = token_array(draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)))
    origin = draw(st.sampled_from(["prompt", "given", "sampled", "written"]))
    common = {
        "version": draw(st.none() | COUNTS),
        "seed": draw(st.none() | st.integers(0, 2**64 - 1)),
        "usage": Usage(draw(COUNTS), draw(COUNTS), draw(COUNTS), draw(COUNTS), draw(COUNTS)),
        "message": draw(st.none() | COLUMNS),
        "attachments": tuple(draw(st.lists(TEXT, max_size=2))),
    }
    if origin != "sampled":
        return Segment(origin, ids, tool_call=draw(st.none() | tool_calls()), **common)
    temperature = draw(st.floats(0, allow_nan=False, allow_infinity=False))
    sampling = Sampling(temperature, draw(st.floats(0, 1, exclude_min=True)), draw(COUNTS))
    return Segment(
        origin,
        ids,
        logprobs=draw(st.none() | arrays(len(ids))),
        measures=draw(st.dictionaries(TEXT, arrays(len(ids)), max_size=2)),
        source=draw(st.none() | st.builds(Origination, TEXT, st.just(sampling), LOGPROB_KINDS)),
        finish=draw(st.none() | st.builds(Finish, st.sampled_from(get_args(FinishKind)), st.none() | TEXT)),
        **common,
    )


SCORES = st.builds(Score, TEXT, st.none() | FLOATS, NAMED_FLOATS, COUNTS, st.booleans())
STEPS = st.builds(
    Step,
    st.lists(segments(), max_size=3).map(tuple),
    st.none() | st.sampled_from(sorted(STOP_WORDS)),
    TEXT,
    st.sampled_from(["continues", "quotes"]),
    st.sampled_from(["policy", "critique", "judge", "probe"]),
    st.dictionaries(TEXT, FLOATS, max_size=2),
    st.lists(SCORES, max_size=2).map(tuple),
    COLUMNS,
)
WHY = st.lists(st.builds(Option, COUNTS, FLOATS, NAMED_FLOATS), max_size=2).map(tuple)


@st.composite
def forks(draw: st.DrawFn) -> Fork:
    num = draw(st.integers(1, 3))
    shares = tuple(draw(st.just([]) | st.lists(st.floats(0, 2), min_size=num, max_size=num)))
    numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
    return Fork(num, draw(TEXT), shares, *(draw(numbers) for _ in range(3)))


COMMANDS = st.one_of(
    st.builds(
        Grow,
        COUNTS,
        st.none() | COUNTS,
        st.sampled_from(["step", "end"]) | st.builds(Tokens, st.integers(1, 2**31)),
        TEXT,
        st.none() | COUNTS | forks(),
        WHY,
    ),
    st.builds(Judge, st.lists(COUNTS, max_size=3).map(tuple), TEXT, COUNTS, WHY),
    st.builds(Close, COUNTS, TEXT, WHY, st.sampled_from(["closed", "roulette"])),
    st.builds(Cancel, COUNTS),
)
ENDINGS = st.one_of(
    st.just(Done()),
    st.builds(Scored, st.lists(SCORES, max_size=2).map(tuple)),
    st.builds(Failure, TEXT, st.booleans()),
)
PROBLEMS = st.builds(
    Problem, TEXT.filter(bool), TEXT.filter(str.strip), public=COLUMNS, secret=st.just({"gold": "SECRET"}), split=TEXT
)


# -- growths ----------------------------------------------------------------------------------------------------------


class Live:
    """A tree growing live, with the records of what happened to it."""

    def __init__(self, index: int = 0, records: list[TreeRecord] | None = None, *, seed: int = 7) -> None:
        self.index = index
        self.records = [] if records is None else records
        problem = Problem(f"p{index}", "make 3 from 1 2", public={"target": 3}, secret={"gold": "1 + 2"})
        prompt = [Segment("prompt", token_array(CODEC.encode(f"problem {index}: ")))]
        self.growth = Growth(Tree(problem, CODEC, prompt, seed=seed), rules=RULES)
        self.records.append(recording.opened(index, problem, prompt=prompt, seed=seed, codec=CODEC))

    @property
    def tree(self) -> Tree:
        return self.growth.tree

    def ask(self, *commands: Command) -> list[int]:
        first = self.growth.num_asked
        ids = [self.growth.ask(command) for command in commands]
        asked = [self.growth.flights[i].command for i in ids]
        self.records.append(recording.asked(self.index, first, asked))
        return ids

    def grow(self, command_id: int, step: Step) -> None:
        number = len(self.growth.flights[command_id].steps)
        self.growth.grow(command_id, step)
        self.records.append(recording.grew(self.index, command_id, number, step=step))

    def end(self, command_id: int, ending: Ending | None = None) -> Outcome:
        num_steps = len(self.growth.flights[command_id].steps)
        ending = ending or Done()
        outcome = self.growth.end(command_id, ending)
        self.records.append(recording.ended(self.index, command_id, ending, num_steps=num_steps))
        return outcome

    def shut(self, reason: str = "done") -> None:
        self.records.append(recording.shut(self.index, reason, self.tree.num_leaves))


def sampled(text: str) -> Segment:
    ids = token_array(CODEC.encode(text))
    logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) / 8
    return Segment("sampled", ids, logprobs=logprobs, measures={"entropy": -logprobs}, usage=Usage(1, len(ids), 3, 2))


def observed(text: str) -> Segment:
    return Segment("given", token_array(CODEC.encode(text)), tool_call=ToolCall("calc", "1+2", result=text))


def turn(text: str = "1+1") -> Step:
    return Step((sampled(f"<calc>{text}</calc>"), observed(f" <result>\n{text}\n</result>")), measures={"entropy": 0.5})


def answer(text: str = "4") -> Step:
    return Step((sampled(f"<answer>{text}</answer>"),), stop="answer", scores=(Score("exact", 1.0),))


def critique(text: str = "wrong") -> Step:
    prompt = Segment("prompt", token_array(CODEC.encode("criticise: ")))
    return Step((prompt, sampled(text)), stop="end_of_sequence", action="critique", edge="quotes", role="critique")


def grow_randomly(live: Live, rng: Random) -> None:
    """One random event of a tree: an ask, a step or an ending."""
    flights = live.growth.flights
    event = rng.choice(["ask", "step", "step", "end"]) if flights else "ask"
    if event == "ask":
        _ask_randomly(live, rng)
        return
    command_id = rng.choice(sorted(flights))
    command, steps = flights[command_id].command, flights[command_id].steps
    if event == "end":
        live.end(command_id, _ending(command, bool(steps), rng))
    elif isinstance(command, Grow) and not (steps and steps[-1].stop):
        is_critique = command.action == "critique" and not steps
        live.grow(command_id, critique() if is_critique else rng.choice([turn(), answer()]))
    elif isinstance(command, Judge) and not steps:
        live.grow(command_id, critique("7"))


def _ending(command: Command, has_steps: bool, rng: Random) -> Ending:
    if rng.random() < 0.1 or (isinstance(command, Grow) and not has_steps):
        return Failure("engine_error", is_retryable=True)
    if isinstance(command, Judge):
        return Scored(tuple(Score(command.judge, float(node)) for node in command.nodes))
    return Done()


def _ask_randomly(live: Live, rng: Random) -> None:
    tree = live.tree
    node = rng.choice(tree.expandable() or [ROOT])
    any_node = rng.randrange(len(tree))
    commands: dict[str, list[Command]] = {
        "grow": [Grow(node)],
        "fork": [Grow(node, fork=Fork(2, "rule", (0.25, 0.75))), Grow(node, fork=len(tree.forks))],
        "at": [_fork_inside(tree, rng)],
        "quote": [Grow(any_node, action="critique", until="step")],
        "judge": [Judge((any_node,), "vote")],
        "close": [Close(any_node, "dead end", stop=rng.choice(["closed", "roulette"]))],
        "cancel": [Cancel(rng.choice(sorted(live.growth.flights) or [0]))],
    }
    kinds = [kind for kind in commands for _ in range(1 if kind in ("close", "cancel") else 3)]
    before = copy.deepcopy(live.growth)
    try:
        live.ask(*commands[rng.choice(kinds)])
    except ContractError:
        live.growth = before


def _fork_inside(tree: Tree, rng: Random) -> Grow:
    """A fork at a sampled token of some branch; at the root's start where nothing is sampled."""
    node = rng.choice([n for n in range(len(tree)) if tree.num_sampled(n)] or [ROOT])
    positions = np.flatnonzero(tree.branch(node).is_sampled).tolist()
    return Grow(node, at=rng.choice(positions or [0]))


def state(growth: Growth) -> Any:
    """All that can be seen of a tree and its commands in flight."""
    tree = growth.tree
    nodes = [
        (
            tree.parent(n), tree.children(n), tree.derived(n), tree.index(n), tree.node_seed(n), tree.length(n),
            tree.num_requested(n), tree.segments(n), tree.stop(n), tree.role(n), tree.edge(n), tree.action(n),
            tree.fork(n), tree.scores(n), tree.notes(n), tree.measure(n, "entropy"), tree.is_leaf(n),
        )
        for n in range(len(tree))
    ]  # fmt: skip
    flights = [(i, f.command, f.place, f.steps) for i, f in growth.flights.items()]
    spent = {role: spend.as_dict() for role, spend in tree.spent().items()}
    totals = [tree.seed, tree.num_leaves, tree.num_failed, growth.num_asked]
    return same([tree.problem, nodes, tree.forks, list(tree.pending), flights, spent, totals])
