"""Grower: carries one Grow out: engine, action, tool, observation, again, until what was asked for is reached.

Owns no tree: it is handed the branch it continues and reports each complete step as it comes. Invariants: no token a
model sampled is ever encoded from text; whatever the model's own tokens cause is a stop word on a leaf, and only what
they do not cause is a `Failure`.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from ramify.config.run_config import GrowthConfig
from ramify.core.action import ActionConfig
from ramify.core.branch import Branch
from ramify.core.command import Score
from ramify.core.errors import EngineError, ToolError
from ramify.core.format import Action, Format, InvalidAction, ToolAction
from ramify.core.growth import Done, Ending, Failure
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, token_array
from ramify.core.stop import stop_word
from ramify.core.tool import ToolResult
from ramify.core.tree import Step
from ramify.runner.judging import Judging
from ramify.runner.sampler import Sampler
from ramify.runner.stopping import STOP_POLICIES, Generated, Ruling, classify_failed_tool, classify_stop
from ramify.runner.toolbox import Toolbox
from ramify.runner.work import Path, Turn, prompt_segment
from ramify.strategies.entropy import STEP_ENTROPY, step_entropy_topk

Prune = Callable[[Branch], str | None]


class Grower:
    """Carry the Grows of one problem's tree out."""

    def __init__(
        self,
        problem: Problem,
        *,
        sampler: Sampler,
        actions: Mapping[str, ActionConfig],
        format: Format,
        toolbox: Toolbox,
        judging: Judging,
        config: GrowthConfig,
        prune: Prune | None = None,
    ) -> None:
        self._problem = problem
        self._sampler = sampler
        self._actions = actions
        self._format = format
        self._toolbox = toolbox
        self._judging = judging
        self._config = config
        self._prune = prune
        self._policy = STOP_POLICIES[config.stop_rule]
        if config.stop_rule == "corrected":
            self._policy = replace(self._policy, empty_call=config.empty_call, tool_failed=config.tool_failed)

    async def grow(self, path: Path) -> Ending:
        """Carry the work of `path` out, reporting each complete step."""
        work = path.work
        if work.done and work.done[-1].stop is not None and stop_word(work.done[-1].stop).is_failure:
            return Failure(str(work.done[-1].notes["reason"]))
        try:
            while not path.is_over:
                step = await self._step(path)
                path.add(step)
                work.report(step)
        except EngineError as error:
            work.report(self.failed_step(path, "engine_error", reason=error.reason, fault=str(error)))
            return Failure(error.reason, error.is_retryable)
        except ToolError as error:
            work.report(self.failed_step(path, "replay_diverged", reason=error.reason, fault=str(error)))
            return Failure(error.reason)
        return Done()

    def quotes(self, action: str) -> bool:
        """Whether growths of `action` begin a fresh context."""
        return self._actions[action].edge == "quotes"

    def failed_step(self, path: Path, stop: str, *, reason: str, fault: str = "") -> Step:
        """A step that says how a growth ended without its tokens being the cause; what it had sampled is billed."""
        name = path.work.command.action
        action = self._actions[name]
        edge = "continues" if path.num_steps else action.edge
        segments = tuple(path.turn.segments) if path.turn is not None else ()
        return Step(segments, stop, name, edge, action.role, notes={"reason": reason, "fault": fault})

    async def _step(self, path: Path) -> Step:
        turn = self._opened(path)
        is_unfinished = True
        while is_unfinished:
            await self._sampler.sample(turn, path)
            is_unfinished = turn.stop is None and turn.was_ended and await self._act(turn, path)
        if turn.stop is None and self._prune is not None and self._is_policy(path):
            self._give_up_if(self._prune(turn.branch), turn)
        return await self._closed(turn, path)

    def _opened(self, path: Path) -> Turn:
        """A turn with nothing sampled yet; a fresh context begins with its prompt."""
        action = self._actions[path.work.command.action]
        turn = Turn(path.branch, path.seed, path.next_node)
        if action.edge == "quotes" and not path.num_steps:
            spans = self._format.quote(action.template, path.work.contexts, self._problem.for_agents())
            turn.branch = Branch(path.branch.codec, path.branch.node, ())
            turn.take(prompt_segment(path.branch.codec, spans))
        path.turn = turn
        return turn

    async def _act(self, turn: Turn, path: Path) -> bool:
        """Do what follows from how the run ended: end the path, or observe. True = the same step goes on."""
        assert turn.finish is not None
        action = self._format.read(turn.branch.run_text) if turn.finish.kind == "stop" else None
        if action is None and turn.finish.kind == "stop":
            return False
        ruling = self._rule(turn, path, action)
        match ruling.action, action:
            case "continue", _:
                turn.finish = None
            case "call_tool", ToolAction():
                await self._use_tool(turn, path, action)
            case "call_tool_error", InvalidAction(reason):
                self._observe(turn, path, action, ToolCall("", turn.branch.run_text, "invalid", reason))
            case "call_tool_error", ToolAction(tool, arguments):
                self._observe(turn, path, action, ToolCall(tool, arguments, "invalid", "the call was empty"))
            case _:
                self._end(turn, ruling)
        return turn.finish is None

    def _end(self, turn: Turn, ruling: Ruling) -> None:
        turn.stop = ruling.stop
        if ruling.stop == "tool_limit":
            self._toolbox.count_limit_reached()

    def _rule(self, turn: Turn, path: Path, action: Action | None) -> Ruling:
        assert turn.finish is not None
        config = self._config
        kind = turn.finish.kind
        return classify_stop(
            self._policy,
            Generated(
                finish="stop" if kind == "stop" else "end_of_sequence" if kind == "end_of_sequence" else "length",
                action=action,
                calls_made=sum(call.tool != "" for call in turn.branch.tool_calls),
                call_limit=config.max_tool_calls,
                response_tokens=len(turn.branch) - turn.branch.num_prompt,
                max_response_tokens=config.max_response_tokens,
                is_context_full=len(turn.branch) >= self._sampler.context_length(path.work.command.action),
                is_last_turn=config.max_turns is not None and turn.branch.num_turns >= config.max_turns,
            ),
        )

    async def _use_tool(self, turn: Turn, path: Path, action: ToolAction) -> None:
        if path.left("tool_calls") == 0:
            turn.stop = "budget"
            return
        try:
            async with asyncio.timeout_at(path.work.deadline):
                call = await self._toolbox.call(path.work.tree, turn.branch, action)
        except TimeoutError:
            turn.stop = "deadline"
            return
        if call.status in ("timeout", "crashed") and (stop := classify_failed_tool(self._policy).stop) is not None:
            turn.take(Segment("given", token_array(()), tool_call=call))
            turn.stop = stop
            turn.notes["tool"] = call.result
        else:
            self._observe(turn, path, action, call)

    def _observe(self, turn: Turn, path: Path, action: Action, call: ToolCall) -> None:
        """Write the observation, cut to the room there is; one that fills it ends the path."""
        result = ToolResult(call.result, call.status, call.metadata, call.attachments)
        ids = token_array(turn.branch.codec.encode(self._format.observe(action, result)))
        response = self._config.max_response_tokens - (len(turn.branch) - turn.branch.num_prompt)
        context = self._sampler.context_length(path.work.command.action) - len(turn.branch)
        room, word = min((response, "length"), (context, "context_full"))
        turn.take(Segment("given", ids[: max(room, 0)], tool_call=call, attachments=call.attachments))
        if len(ids) >= room:
            turn.stop = word

    def _give_up_if(self, reason: str | None, turn: Turn) -> None:
        if reason is not None:
            turn.stop = "closed"
            turn.notes["closed"] = reason

    def _is_policy(self, path: Path) -> bool:
        action = self._actions[path.work.command.action]
        return action.role == "policy" and action.edge == "continues"

    async def _closed(self, turn: Turn, path: Path) -> Step:
        """The finished step: measured, and judged if it is a leaf."""
        name = path.work.command.action
        action = self._actions[name]
        scores: tuple[Score, ...] = ()
        if turn.stop is not None and not stop_word(turn.stop).is_failure and self._is_policy(path):
            scores, fault = await self._judging.leaf_scores(turn.branch, self._problem)
            if fault is not None:
                turn.notes["judge"] = fault
        return Step(
            tuple(turn.segments),
            turn.stop,
            action=name,
            edge=action.edge if not path.num_steps else "continues",
            role=action.role,
            measures=self._measured(turn),
            scores=scores,
            notes=dict(turn.notes),
        )

    def _measured(self, turn: Turn) -> dict[str, float]:
        """Values of the whole step that need more than its own logprobs."""
        value = step_entropy_topk(turn.topk, turn.branch.codec.vocab_size) if turn.topk else None
        return {} if value is None else {STEP_ENTROPY: value}
