"""The batch loop of the published trainers, barriers and all: what the runner is measured against.

Every iteration generates one step for every active path of the whole batch, waits for the slowest, then runs all their
tools, waits for the slowest, and goes on with the survivors. A round of expansion begins when the whole batch has grown
the one before. Sources: OFFLINE_TREE_SEARCH_REFACTOR_PLAN.md of zzfoutofspace/ATPO (`offline`) and RUC-NLPIR/ARPO
vllm_rollout_with_tools.py (`online`).

Where the published code is wrong rather than slow, this is right: a step is a node of its own, so that there is
something to expand; expansion starts fresh paths and leaves the chosen node alone; each request asks for its own room,
not the batch's largest, so that a turn cut by `length` ends its path; baselines are those of the path. Engine, format,
tools, judges and limits are those of the `Run` it is given, and seeds are hashed as in a tree, so it grows the same
trees. Its nodes share segments where the published ones copy whole token lists. A failed call ends the batch.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ramify.config.run_config import GrowthConfig
from ramify.config.strategy_options import read_options
from ramify.core.branch import Branch
from ramify.core.command import Score
from ramify.core.engine import Request
from ramify.core.errors import ConfigError
from ramify.core.format import Action, InvalidAction, ToolAction, span_ids
from ramify.core.seeds import child_seed, strategy_seed, tree_seed
from ramify.core.segment import Finish, Floats_T, Origination, Segment, ToolCall, token_array
from ramify.core.tool import ToolResult
from ramify.runner.run import Run
from ramify.runner.sampler import ENTROPY_TOKENS, ENTROPY_TOPK
from ramify.runner.stopping import STOP_POLICIES, Generated, Ruling, classify_stop
from ramify.runner.work import extended, prompt_segments, sampled_segments
from ramify.strategies.offline import OfflineConfig
from ramify.strategies.online import OnlineConfig
from ramify.strategies.parts.branching import ForkRule
from ramify.strategies.parts.draws import Draws, without_replacement
from ramify.strategies.parts.entropy import step_entropy_topk

C = TypeVar("C")


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A step: what one turn of the model and its observation added to the parent's branch."""

    tree: int
    depth: int
    branch: Branch
    seed: int
    children: list["Node"] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    """What the step itself added."""
    stop: str | None = None
    topk: tuple[Floats_T, ...] = ()
    scores: tuple[Score, ...] = ()

    def child(self) -> "Node":
        """A new continuation, with nothing sampled yet."""
        seed = child_seed(self.seed, len(self.branch), len(self.children))
        self.children.append(Node(self.tree, self.depth + 1, self.branch, seed))
        return self.children[-1]

    def add(self, segments: Sequence[Segment]) -> None:
        self.segments.extend(segments)
        self.branch = extended(self.branch, segments, node=self.depth)

    def subtree(self) -> list["Node"]:
        """This node and all below it, breadth first."""
        nodes: list[Node] = [self]
        for node in nodes:
            nodes.extend(node.children)
        return nodes

    def leaves(self) -> list["Node"]:
        return [node for node in self.subtree() if node.stop is not None]

    @property
    def entropy(self) -> float:
        """What forks look at."""
        return step_entropy_topk(self.topk, self.branch.codec.vocab_size) or 0.0


@dataclass(slots=True)
class Path:
    """One path of the online loop, and the entropy its later steps are compared with."""

    head: Node
    baseline: float | None = None


@dataclass(slots=True)
class Prompt:
    """One problem of the batch. `slots` is the number of paths that may still be started (online)."""

    root: Node
    draws: Draws
    slots: int = 0
    paths: list[Path] = field(default_factory=list)

    def expandable(self) -> list[Node]:
        return [node for node in self.root.subtree() if node.stop is None]

    def start(self, number: int) -> list[Path]:
        """Fresh paths from the bare prompt."""
        self.slots -= number
        return [Path(self.root.child()) for _ in range(number)]

    def go_on(self, rule: ForkRule, max_forks: int) -> None:
        """Every survivor takes another step, some fork; where none survived, one fresh path is started."""
        ongoing: list[Path] = []
        branches: list[Path] = []
        for path in self.paths:
            if path.head.stop is None:
                num_forks = self._num_forks(path, rule, min(max_forks, self.slots))
                self.slots -= num_forks
                ongoing.append(Path(path.head.child(), path.baseline))
                branches += [Path(path.head.child(), path.baseline) for _ in range(num_forks)]
        self.paths = ongoing + branches or self.start(min(1, self.slots))

    def _num_forks(self, path: Path, rule: ForkRule, attempts: int) -> int:
        if not attempts:
            return 0
        if path.baseline is None:
            path.baseline = path.head.entropy
        delta = path.head.entropy - path.baseline
        return sum(rule.decide(self.draws.random(), delta, 0) for _ in range(attempts))


class LockStep:
    """One batch: all problems of a run, which must not be grown by anybody else."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._config = config = run.prepared.config.growth
        known = GrowthConfig(
            max_response_tokens=config.max_response_tokens,
            max_tool_calls=config.max_tool_calls,
            max_turns=config.max_turns,
        )
        if config != known:
            raise ConfigError(f"the lock-step loop knows limits of tokens, calls and turns, no more: {config!r}")
        self._sampling = run.prepared.config.actions["policy"].sampling
        self._wants_topk = False
        self.num_iterations = 0

    async def grow(self) -> list[Node]:
        """Grow a tree for every problem by the run's strategy; returns their roots, every leaf judged."""
        strategy = self._run.prepared.config.strategy
        prompts = [self._prompt(index) for index in range(len(self._run.prepared.problems))]
        try:
            match strategy.name:
                case "offline":
                    await self._offline(prompts, _read(OfflineConfig, strategy.options))
                case "online":
                    await self._online(prompts, _read(OnlineConfig, strategy.options))
                case name:
                    raise ConfigError(f"strategy {name!r}: the lock-step loop knows 'offline' and 'online'")
            await asyncio.gather(*(self._judge(leaf) for prompt in prompts for leaf in prompt.root.leaves()))
        finally:
            await self._run.toolbox.close()
        return [prompt.root for prompt in prompts]

    # -- the two loops ------------------------------------------------------------------------------------------------

    async def _offline(self, prompts: Sequence[Prompt], options: OfflineConfig) -> None:
        """Initial chains of the whole batch, then rounds of expansion of the whole batch."""
        known = OfflineConfig(
            options.initial_rollouts,
            options.beam_size,
            expansion_iterations=options.expansion_iterations,
            expansion_nodes=options.expansion_nodes,
            n=options.n,
        )
        if options.initial_rollouts == "dynamic" or options != known:
            raise ConfigError(f"the lock-step loop knows other fixed numbers than the defaults, no more: {options!r}")
        number = min(options.initial_rollouts, options.n)
        await self._to_the_end([prompt.root.child() for prompt in prompts for _ in range(number)])
        for _ in range(options.expansion_iterations):
            chosen = [
                node
                for prompt in prompts
                for node in without_replacement(prompt.expandable(), options.expansion_nodes, prompt.draws)
            ]
            await self._to_the_end([node.child() for node in chosen for _ in range(options.beam_size - 1)])

    async def _to_the_end(self, active: Sequence[Node]) -> None:
        while active:
            await self._iterate(active)
            active = [node.child() for node in active if node.stop is None]

    async def _online(self, prompts: Sequence[Prompt], options: OnlineConfig) -> None:
        """One step of all paths of the batch, then forks."""
        known = OnlineConfig(
            options.n,
            options.initial_rollouts,
            options.beam_size,
            branch_probability=options.branch_probability,
            entropy_weight=options.entropy_weight,
        )
        if options.initial_rollouts == "dynamic" or options != known:
            raise ConfigError(f"the lock-step loop knows other fixed numbers than the defaults, no more: {options!r}")
        self._wants_topk = True
        rule = ForkRule("arpo", options.branch_probability, options.entropy_weight, options.published.clipping)
        for prompt in prompts:
            prompt.slots = options.n
            prompt.paths = prompt.start(min(options.initial_rollouts, options.n))
        while active := [path.head for prompt in prompts for path in prompt.paths]:
            await self._iterate(active)
            for prompt in prompts:
                prompt.go_on(rule, options.beam_size - 1)

    # -- one iteration ------------------------------------------------------------------------------------------------

    async def _iterate(self, nodes: Sequence[Node]) -> None:
        """One step of every node, with its observation. Two barriers: for the engine, for the tools."""
        self.num_iterations += 1
        engine, toolbox = self._run.prepared.engine, self._run.toolbox
        generations = await asyncio.gather(*(engine.generate(self._request(node)) for node in nodes))
        calls: list[tuple[Node, ToolAction]] = []
        source = Origination(engine.capabilities.name, self._sampling, engine.capabilities.logprobs)
        for node, generation in zip(nodes, generations, strict=True):
            node.add(sampled_segments(generation, source, node.seed))
            node.topk = generation.topk
            self._process(node, generation.finish, calls)
        results = await asyncio.gather(*(toolbox.call(str(node.tree), node.branch, action) for node, action in calls))
        for (node, action), call in zip(calls, results, strict=True):
            self._observe(node, action, call)

    def _request(self, node: Node) -> Request:
        return Request(
            ids=node.branch.ids,
            max_tokens=self._room(node)[0],
            seed=node.seed,
            stops=self._run.prepared.format.stops,
            sampling=self._sampling,
            topk=ENTROPY_TOPK if self._wants_topk else 0,
            topk_tokens=ENTROPY_TOKENS,
            measures=self._run.prepared.engine.capabilities.measures & {"entropy"},
            request_id=f"{node.tree}/{node.seed:016x}",
        )

    def _room(self, node: Node) -> tuple[int, str]:
        """Tokens the path may still take, and the stop word that is due when there are none."""
        response = self._config.max_response_tokens - (len(node.branch) - node.branch.num_prompt)
        context = self._run.prepared.engine.capabilities.context_length - len(node.branch)
        return min((response, "length"), (context, "context_full"))

    def _process(self, node: Node, finish: Finish, calls: list[tuple[Node, ToolAction]]) -> None:
        """End the path, note its tool call, or answer an action that is none."""
        action = self._run.prepared.format.read(node.branch.run_text) if finish.kind == "stop" else None
        ruling = self._ruling(node, finish, action)
        if ruling.stop is not None:
            node.stop = ruling.stop
        elif ruling.action == "call_tool" and isinstance(action, ToolAction):
            calls.append((node, action))
        elif action is not None:
            reason = action.reason if isinstance(action, InvalidAction) else "the call was empty"
            self._observe(node, action, ToolCall("", node.branch.run_text, "invalid", reason))

    def _ruling(self, node: Node, finish: Finish, action: Action | None) -> Ruling:
        branch, config = node.branch, self._config
        return classify_stop(
            STOP_POLICIES["corrected"],
            Generated(
                finish=finish.kind if finish.kind != "abort" else "length",
                action=action,
                calls_made=sum(call.tool != "" for call in branch.tool_calls),
                call_limit=config.max_tool_calls,
                response_tokens=len(branch) - branch.num_prompt,
                max_response_tokens=config.max_response_tokens,
                is_context_full=len(branch) >= self._run.prepared.engine.capabilities.context_length,
                is_last_turn=config.max_turns is not None and node.depth >= config.max_turns,
            ),
        )

    def _observe(self, node: Node, action: Action, call: ToolCall) -> None:
        """Write what the tool said, cut to the room there is; what fills it ends the path."""
        result = ToolResult(call.result, call.status, call.metadata, call.attachments)
        ids = token_array(span_ids(node.branch.codec, self._run.prepared.format.observe(action, result)))
        room, word = self._room(node)
        node.add([Segment("given", ids[: max(room, 0)], tool_call=call, attachments=call.attachments)])
        if len(ids) >= room:
            node.stop = word

    # -- the ends of the batch ----------------------------------------------------------------------------------------

    def _prompt(self, index: int) -> Prompt:
        run, problem = self._run, self._run.prepared.problems[index]
        seed = tree_seed(run.prepared.config.seed, problem.uid)
        opening = prompt_segments(run.prepared.codec, run.prepared.format.open(problem.for_agents()))
        root = Node(index, 0, Branch(run.prepared.codec, 0, ()), seed)
        root.add(opening)
        return Prompt(root, np.random.default_rng(strategy_seed(seed)))

    async def _judge(self, leaf: Node) -> None:
        leaf.scores, _ = await self._run.prepared.judging.leaf_scores(
            leaf.branch, self._run.prepared.problems[leaf.tree]
        )


def _read(kind: type[C], given: Mapping[str, Any]) -> C:
    """The options of a run, which have been checked."""
    options, *_ = read_options(kind, given)
    assert options is not None
    return options
