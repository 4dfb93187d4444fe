"""Requirements S0.1 to S0.10, each shown on the built-in model: a real network, a real tokenizer, a stateful tool."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.runner.parts import Listening, Plan

from ramify.config.configure import resolve
from ramify.config.run_config import GrowthConfig, RunConfig, ToolsConfig
from ramify.core.action import ActionConfig
from ramify.core.command import Command, Fork, Grow
from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.core.segment import Sampling
from ramify.core.tool import Branching, ToolResult
from ramify.core.tree import ROOT, Tree
from ramify.engines.builtin import Builtin
from ramify.formats.tags import TagFormat
from ramify.rows.arrays import padded
from ramify.runner.events import CommandsAsked, Event
from ramify.runner.folder import begin
from ramify.runner.library import Rollout, rollout
from ramify.strategies.parts.branching import arpo_probability, dynamic_initial_rollouts
from ramify.strategies.parts.entropy import STEP_ENTROPY, step_entropy_topk
from ramify.tasks.countdown import Countdown
from ramify.testing.clock import run_virtual
from ramify.tools.calculator import Calculator, CalculatorSession


def grown(config: RunConfig, **options: Any) -> Rollout:
    """A run in virtual time, on the built-in model unless another engine is given."""
    options = {"engine": Builtin(), **options}
    return run_virtual(rollout(config=config, **options))


def preset(name: str, *overrides: str, prompts: int = 2) -> RunConfig:
    return resolve(preset=name, flags={"prompts": prompts, "seed": 5}, overrides=overrides).config


def texts(tree: Tree, node: int, origin: str) -> str:
    return tree.codec.decode(int(i) for s in tree.segments(node) if s.origin == origin for i in s.ids)


@pytest.mark.covers("S0.1", engine="builtin")
def test_a_tree_a_prompt_with_its_queries_counters_entropies_and_masks() -> None:
    result = grown(preset("offline", "strategy.options.choose=entropy"))
    assert [tree.problem.uid for tree in result.trees] == [p.uid for p in Countdown().problems("heldout", 2, 5)]
    for tree in result.trees:
        nodes = tree.subtree()
        assert sorted(nodes) == list(range(len(tree)))
        assert [tree.depth(n) for n in nodes] == sorted(tree.depth(n) for n in nodes)
        for node in nodes:
            path = tree.path(node)
            assert path[0] == ROOT
            assert node not in path[:-1]
            assert [tree.parent(child) for child in path[1:]] == path[:-1]
            assert all(tree.parent(child) == node for child in tree.children(node))
            assert (node in tree.leaves()) == tree.is_ended(node)
            assert (node in tree.expandable()) == (not tree.is_ended(node))
            branch = tree.branch(node)
            assert len(branch.tool_calls) == branch.transcript.count(" <result>\n")
            if node != ROOT:
                own, initial = tree.measure(node, STEP_ENTROPY), tree.measure(path[1], STEP_ENTROPY)
                assert own is not None and own >= 0
                assert initial is not None and initial >= 0
        for leaf in tree.leaves():
            branch = tree.branch(leaf)
            written = "".join(texts(tree, n, "sampled") for n in tree.path(leaf))
            shown = "".join(texts(tree, n, "given") for n in tree.path(leaf))
            assert branch.codec.decode(branch.ids[branch.is_sampled]) == written
            assert branch.codec.decode(branch.ids[~branch.is_sampled][branch.num_prompt :]) == shown
            assert written.startswith("<calc>") and written.endswith("</answer>")


@pytest.mark.covers("S0.2", engine="builtin")
def test_initial_chains_are_a_number_or_follow_from_each_prompts_entropy() -> None:
    mixed = [p for n in (3, 4, 5) for p in Countdown(num_numbers=n).problems("heldout", 1, 5)]
    fixed = grown(preset("offline", "strategy.options.initial_rollouts=4"), problems=mixed)
    assert len({tree.length(ROOT) for tree in fixed.trees}) > 1
    assert [tree.fork(tree.stems()[0]).num_siblings for tree in fixed.trees] == [4] * 3  # type: ignore[union-attr]
    dynamic = grown(preset("arpo", "strategy.options.initial_rollouts=dynamic", "strategy.options.n=9"), problems=mixed)
    for tree in dynamic.trees:
        chain = [tree.stems()[0]]
        while below := tree.children(chain[-1]):
            chain.append(below[0])
        h_steps = [tree.measure(node, STEP_ENTROPY) or 0.0 for node in chain]
        wanted = dynamic_initial_rollouts(h_steps[0], h_steps, 9)
        assert sum(f.num_siblings for f in tree.forks if f.rule == "initial") == wanted


class WarmAndCold(Plan):
    """Two chains by each of two actions."""

    measures = frozenset({STEP_ENTROPY})

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        forks = {name: Fork(2, name) for name in ("policy", "cold")}
        return None if self.told else [Grow(ROOT, action=name, fork=forks[name]) for name in forks for _ in range(2)]


@pytest.mark.covers("S0.3", engine="builtin")
def test_chains_use_what_the_response_has_left_and_each_action_its_own_sampling() -> None:
    engine = Listening(Builtin())
    actions = {"policy": ActionConfig(), "cold": ActionConfig(sampling=Sampling(temperature=0.0))}
    config = RunConfig(seed=5, actions=actions, growth=GrowthConfig(max_response_tokens=70))
    result = grown(config, problems=Countdown().problems("heldout", 4, 5), engine=engine, strategy=WarmAndCold)
    prompts = {str(i): tree.length(ROOT) for i, tree in enumerate(result.trees)}
    for request, generation in engine.answers:
        used = len(request.ids) - prompts[request.request_id.partition("/")[0]]
        assert request.max_tokens == 70 - used
        assert generation.logprobs is not None and len(generation.logprobs) == len(generation.ids)
        assert (generation.logprobs <= 0).all() and np.isfinite(generation.logprobs).all()
        for top, own in zip(generation.topk, generation.logprobs, strict=False):
            assert top.max() >= own
            assert request.sampling.temperature > 0 or np.isclose(top.max(), own)
    chains = [[tree.branch(leaf).text for leaf in by_stem(tree)] for tree in result.trees]
    assert all(cold == same for _, _, cold, same in chains)
    assert any(warm != other for warm, other, _, _ in chains)
    for tree in result.trees:
        assert all(tree.length(leaf) - tree.length(ROOT) <= 70 for leaf in tree.leaves())


def by_stem(tree: Tree) -> list[int]:
    """The leaf of each stem of a tree of chains."""
    return [tree.leaves(stem)[0] for stem in tree.stems()]


ENDS = {"answer": "stop", "tool_limit": "stop", "length": "length", "end_of_sequence": "end_of_sequence"}
"""Stop word -> how the engine ended the last generation, where the path did not end by an observation."""


@pytest.mark.covers("S0.4", engine="builtin")
@pytest.mark.parametrize(
    ("stop", "growth", "stops_at_answer"),
    [
        ("answer", GrowthConfig(), True),
        ("tool_limit", GrowthConfig(max_tool_calls=1), True),
        ("length", GrowthConfig(max_response_tokens=20), True),
        ("end_of_sequence", GrowthConfig(), False),
    ],
)
def test_every_stop_is_classified_and_every_step_measured(
    stop: str, growth: GrowthConfig, stops_at_answer: bool
) -> None:
    engine = Listening(Builtin())
    task = Countdown(format=TagFormat(tags={"calculator": "calc"}, stops_at_answer=stops_at_answer))
    config = RunConfig(seed=5, prompts=2, growth=growth, actions={"policy": ActionConfig(), "cold": ActionConfig()})
    result = grown(config, engine=engine, task=task, strategy=WarmAndCold)
    assert set(result.report.stop_words) == {stop}
    for tree in result.trees:
        for leaf in tree.leaves():
            last = tree.segments(leaf)[-1]
            assert last.finish is None or last.finish.kind == ENDS[stop]
    measured = {generation.ids.tobytes() + request.ids.tobytes(): generation for request, generation in engine.answers}
    vocab = engine.codec.vocab_size
    for tree in result.trees:
        for node in tree.subtree()[1:]:
            sampled = [s for s in tree.segments(node) if s.is_sampled]
            if not sampled:
                continue
            (segment,) = sampled
            context = tree.branch(node).ids[: tree.length(tree.parent(node) or ROOT)]
            generation = measured[segment.ids.tobytes() + context.tobytes()]
            assert len(generation.topk) == min(20, len(segment))
            expected = step_entropy_topk(generation.topk, vocab)
            assert tree.measure(node, STEP_ENTROPY) == pytest.approx(expected)
            assert (segment.measures["entropy"] <= np.log(vocab) + 1e-4).all()


class ShakyCalculator(Calculator):
    """A calculator that takes a second; a sum hangs, a product needs a second try."""

    def __init__(self) -> None:
        self.tried: set[str] = set()

    branching: Branching = "fork"

    async def open(self, problem: Problem) -> CalculatorSession:
        session = await super().open(problem)
        return ShakySession(session.state, self)


class ShakySession(CalculatorSession):
    def __init__(self, state: Any, tool: ShakyCalculator) -> None:
        super().__init__(state)
        self.tool = tool

    async def call(self, arguments: str) -> ToolResult:
        if "*" in arguments and arguments not in self.tool.tried:
            self.tool.tried.add(arguments)
            raise ToolError("sandbox_lost")
        await asyncio.sleep(1e9 if "+" in arguments else 1.0)
        return await super().call(arguments)

    async def fork(self) -> CalculatorSession:
        return ShakySession(self.state, self.tool)


@pytest.mark.covers("S0.5", engine="builtin")
def test_calls_run_in_parallel_with_deadline_and_retries_and_all_is_counted() -> None:
    tools = ToolsConfig(deadline_s=5.0, max_retries=2)
    config = RunConfig(seed=5, prompts=4, tools=tools, growth=GrowthConfig(max_response_tokens=240, max_tool_calls=2))
    result = grown(config, task=Countdown(tools=(ShakyCalculator(),)))
    leaves = [(tree, leaf) for tree in result.trees for leaf in tree.leaves()]
    calls = [call for tree in result.trees for n in tree.subtree() for s in tree.segments(n) if (call := s.tool_call)]
    statuses = {call.status for call in calls}
    assert {"ok", "timeout"} <= statuses
    for call in calls:
        if call.status == "timeout":
            assert "+" in call.arguments
            assert call.duration_s == pytest.approx(5.0) or (call.num_retries and call.duration_s > 5.0)
        assert call.num_retries == 0 or "*" in call.arguments
    assert any("[timeout] Error: Tool(calc) execution failed" in tree.branch(leaf).text for tree, leaf in leaves)
    for tree, leaf in leaves:
        branch = tree.branch(leaf)
        told = branch.codec.decode(branch.ids[~branch.is_sampled])
        assert told.count(" <result>\n") == len(branch.tool_calls)
    figures, executed = result.report.tools, [call for call in calls if call.is_executed]
    assert figures["tools/total_calls"] == figures["tools/calculator/calls"] == len(executed)
    assert figures["tools/successful_calls"] == sum(call.status == "ok" for call in executed)
    assert figures["tools/failed_calls"] == len(executed) - figures["tools/successful_calls"]
    assert figures["tools/calculator/success_rate"] == figures["tools/successful_calls"] / len(executed)
    assert figures["tools/total_execution_time"] == pytest.approx(sum(call.duration_s for call in executed))
    assert figures["tools/max_execution_time"] == max(call.duration_s for call in executed)
    assert figures["tools/avg_execution_time"] == pytest.approx(figures["tools/calculator/avg_time"])
    assert figures["tools/total_retries"] == sum(call.num_retries for call in executed) > 0
    assert figures["tools/call_limit_reached_count"] == result.report.stop_words.get("tool_limit", 0) > 0
    assert result.report.seconds < figures["tools/total_execution_time"] / 4
    assert result.report.max_rss_mb > 10


@pytest.mark.covers("S0.6", engine="builtin")
@pytest.mark.parametrize("rule", ["uniform", "uniform_with_replacement", "entropy"])
def test_each_round_grows_new_continuations_from_chosen_nodes_to_the_end(rule: str) -> None:
    overrides = ["expansion_iterations=2", "expansion_nodes=3", "beam_size=3", f"choose={rule}"]
    config = preset("offline", *(f"strategy.options.{o}" for o in overrides))
    rounds: list[list[int]] = []

    def keep(event: Event) -> None:
        if isinstance(event, CommandsAsked):
            rounds.append([c.node for c in event.asked.commands if isinstance(c, Grow) and c.why])

    result = grown(config, observers=[keep])
    chosen = [nodes for nodes in rounds if nodes]
    assert len(chosen) == 2 * 2
    for nodes in chosen:
        assert len(nodes) == 3 * (3 - 1)
        if rule != "uniform_with_replacement":
            assert len(set(nodes)) == 3
    for tree in result.trees:
        assert len(tree.leaves()) == 3 + 2 * 3 * (3 - 1)
        assert all(tree.stop(leaf) in ("answer", "length", "tool_limit") for leaf in tree.leaves())
        assert {f.rule for f in tree.forks} == {"initial", rule}


@pytest.mark.covers("S0.7", engine="builtin")
def test_n_leaves_a_prompt_become_padded_arrays() -> None:
    result = grown(preset("chains", "rows.leaves=5"))
    rows = result.rows()
    assert [sum(row.uid == tree.problem.uid for row in rows) for tree in result.trees] == [5, 5]
    arrays = padded(rows, num_rows=12, num_response=256)
    assert arrays.responses.shape == arrays.response_mask.shape == (12, 256)
    assert arrays.is_padding.tolist() == [False] * 10 + [True] * 2
    for row, response, mask in zip(rows, arrays.responses, arrays.response_mask, strict=False):
        own = row.ids[row.num_prompt :]
        assert response[: len(own)].tolist() == own.tolist()
        assert mask[: len(own)].tolist() == row.is_sampled[row.num_prompt :].astype(int).tolist()
        assert not mask[len(own) :].any()
    assert not arrays.loss_weights[10:].any()


@pytest.mark.covers("S0.8", engine="builtin")
@pytest.mark.parametrize(("branch_probability", "rules"), [(0.4, None), (-9.0, {"restart"}), (9.0, {"arpo"})])
def test_online_paths_fork_by_their_change_of_entropy_up_to_n(
    branch_probability: float, rules: set[str] | None
) -> None:
    options = ["n=7", "initial_rollouts=2", f"branch_probability={branch_probability}", "entropy_weight=0.5"]
    result = grown(preset("arpo", *(f"strategy.options.{o}" for o in options), prompts=3))
    for tree in result.trees:
        assert len(tree.leaves()) == 7
        later = {fork.rule for fork in tree.forks if fork.rule != "initial"}
        assert rules is None or later <= rules
        for fork in tree.forks:
            if fork.rule != "arpo":
                assert fork.node == ROOT
                continue
            own = tree.measure(fork.node, STEP_ENTROPY)
            first = tree.measure(tree.path(fork.node)[1], STEP_ENTROPY)
            assert own is not None and first is not None and fork.score is not None
            assert fork.score == pytest.approx(own - first)
            expected = arpo_probability(fork.score, branch_probability=branch_probability, entropy_weight=0.5)
            assert fork.probability == pytest.approx(expected)
            assert texts(tree, fork.node, "given")


@pytest.mark.covers("S0.9", engine="builtin")
@pytest.mark.parametrize("name", ["offline", "arpo"])
def test_the_log_names_phases_rounds_active_branches_and_tool_calls(tmp_path: Path, name: str) -> None:
    begin(preset(name), tmp_path / "run")
    lines = [msgspec.json.decode(line) for line in (tmp_path / "run" / "log.jsonl").read_bytes().splitlines()]
    for tree in range(2):
        phases = [line for line in lines if line["event"] == "phase" and line["tree"] == tree]
        names = [line["phase"] for line in phases]
        assert names == ["build", "initial chains", *["expansion"] * (len(names) - 3), "collection"]
        assert len(names) > 3
        rounds = [line["round"] for line in phases if line["phase"] == "expansion"]
        assert rounds == list(range(1, len(rounds) + 1))
        assert all(a["tool_calls"] <= b["tool_calls"] for a, b in pairwise(phases))
    assert max(line["active_branches"] for line in lines) >= 6
    assert lines[-1]["tool_calls"] > 0


RULES = """
def last(tree, candidates, k, rng):
    return candidates[-k:]


def after_two_calls(branch):
    return "two calls" if len(branch.tool_calls) == 2 else None


def shortest(tree, leaves, n, rng):
    return leaves[:n]
"""


@pytest.mark.covers("S0.10", engine="builtin")
def test_rules_to_choose_prune_and_sample_by_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.py"
    file.write_text(RULES)
    result = grown(
        preset(
            "offline",
            f"strategy.options.choose={file}:last",
            f"growth.prune={file}:after_two_calls",
            f"rows.sample={file}:shortest",
            "rows.leaves=2",
        )
    )
    for tree in result.trees:
        assert {fork.rule for fork in tree.forks} == {"initial", f"{file}:last"}
        for leaf in tree.leaves():
            assert len(tree.branch(leaf).tool_calls) <= 2
            assert tree.stop(leaf) != "closed" or tree.notes(leaf)["closed"] == "two calls"
        assert any(tree.stop(leaf) == "closed" for leaf in tree.leaves())
    kept = [row.leaf_id for row in result.rows()]
    assert kept == [leaf for tree in result.trees for leaf in tree.leaves()[:2]]
