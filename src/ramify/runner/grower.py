"""Grower: carries out one Grow: engine, action, tool, observation, and again until the command is fulfilled.

It owns no tree: it gets the branch to continue and reports each complete step. Invariants: tokens that a model sampled
are never encoded from text. What the model's own tokens cause is a stop word on a leaf; everything else is a `Failure`.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ramify.config.run_config import GrowthConfig
from ramify.core.action import ActionConfig
from ramify.core.branch import Branch, estimated_tokens
from ramify.core.environment import EARNED
from ramify.core.errors import EngineError, EnginesDown, ToolError
from ramify.core.format import (
    Action,
    Format,
    GivingUp,
    InvalidAction,
    MessageFormat,
    Span,
    ToolAction,
    TurnAction,
    TurnFormat,
    span_ids,
)
from ramify.core.growth import Done, Ending, Failure
from ramify.core.problem import Problem
from ramify.core.protocols import follows
from ramify.core.seeds import coin
from ramify.core.segment import Finish, PathEnd, Segment, ToolCall, token_array
from ramify.core.stop import KEPT, ROULETTE, stop_word
from ramify.core.tool import ToolResult
from ramify.core.tree import Step
from ramify.environments.score import EnvironmentScore
from ramify.formats.messages import text_of
from ramify.runner.judging import Judging, ScoreState
from ramify.runner.pruning import PruneRule
from ramify.runner.sampler import Sampler
from ramify.runner.stopping import STOP_POLICIES, Generated, Ruling, classify_failed_tool, classify_stop
from ramify.runner.toolbox import Toolbox
from ramify.runner.work import Path, Turn, behind_end, message_segments, prompt_segments
from ramify.runner.world_model import WorldModel
from ramify.strategies.parts.entropy import STEP_ENTROPY, step_entropy_topk

PRUNE_WORDS: Final = frozenset({"repetition", "no_valid_step", "tool_errors", "depth_limit"})
"""Stop words that a prune rule's reason may begin with (`word: …`). For other reasons a path ends as `closed`."""
ENDS: Final[Mapping[PathEnd, str]] = {"done": "done", "truncated": "env_limit"}
"""How an environment ends a path -> the stop word."""
LIMIT_WARNING: Final = "\nNo tool calls are left. Give the final answer now.\n"
"""AT2PO's rule appends this after a call beyond the limit. The wording is ours; the text is given, never trained."""


class Grower:
    """Carries out the Grows of one problem's tree."""

    def __init__(
        self,
        problem: Problem,
        *,
        sampler: Sampler,
        actions: Mapping[str, ActionConfig],
        format: Format,
        quoting: Mapping[str, Format],
        toolbox: Toolbox,
        judging: Judging,
        config: GrowthConfig,
        pruning: PruneRule | None = None,
        world: EnvironmentScore | None = None,
    ) -> None:
        self._problem = problem
        self._sampler = sampler
        self._actions = actions
        self._format = format
        self._quoting = quoting
        self._in_messages = format if follows(format, MessageFormat) else None
        self._giving_up = format if follows(format, GivingUp) else None
        self._toolbox = toolbox
        self._judging = judging
        self._config = config
        self._pruning = pruning
        self._world = world
        self._turns = format if follows(format, TurnFormat) and toolbox.takes_turns else None
        self._policy = STOP_POLICIES[config.stop_rule]
        if config.stop_rule == "corrected":
            self._policy = replace(
                self._policy,
                empty_call=config.empty_call,
                no_action=config.no_action,
                tool_failed=config.tool_failed,
            )

    async def grow(self, path: Path) -> Ending:
        """Carry out the work of `path` and report each complete step. Raises `EnginesDown`, which stops the run."""
        last = path.work.done[-1] if path.work.done else None
        if last is not None and last.stop is not None and stop_word(last.stop).is_failure:
            return Failure(str(last.notes["reason"]))
        try:
            while not path.is_over:
                step = await self._step(path)
                path.add(step)
                path.work.report(step)
        except EnginesDown:
            raise
        except EngineError as error:
            path.work.report(self.failed_step(path, "engine_error", reason=error.reason, fault=str(error)))
            return Failure(error.reason, error.is_retryable)
        except ToolError as error:
            path.work.report(self.failed_step(path, "replay_diverged", reason=error.reason, fault=str(error)))
            return Failure(error.reason)
        return Done()

    def state_score(self, tree: str) -> ScoreState:
        """Scores branches of the tree called `tree` by the states of its environment."""
        return partial(self._toolbox.score, tree)

    def quotes(self, action: str) -> bool:
        """Whether growths of `action` begin a fresh context."""
        return action in self._quoting

    def failed_step(self, path: Path, stop: str, *, reason: str, fault: str = "") -> Step:
        """A step that records why a growth ended, if its tokens are not the cause. What it sampled is billed."""
        name = path.work.command.action
        action = self._actions[name]
        edge = "continues" if path.num_steps else action.edge
        segments = tuple(path.turn.segments) if path.turn is not None else ()
        notes = {"reason": reason, "fault": fault}
        return Step(segments, stop, name, edge, action.role, notes=notes, asides=path.taken_asides())

    async def _step(self, path: Path) -> Step:
        turn, action = self._opened(path), path.work.command.action
        is_unfinished = turn.stop is None
        while is_unfinished:
            await self._sampler.sample(turn, path)
            is_to_act = turn.was_ended or (self._policy.no_action == "observe" and self._is_full(turn, path))
            if turn.message is not None and not is_to_act and not self._sampler.can_continue_turn(action):
                # The message was cut, and its engine cannot continue it.
                turn.stop = turn.stop or "length"
            is_unfinished = turn.stop is None and is_to_act and await self._act(turn, path)
        if turn.stop is None and self._is_policy(path):
            await self._prune_at_end(turn, path)
        return await self._closed(turn, path)

    def _opened(self, path: Path) -> Turn:
        """A turn with nothing sampled yet. A fresh context begins with its prompt; an action with a fixed text is
        complete."""
        action = self._actions[path.work.command.action]
        turn = Turn(path.branch, path.seed, path.next_node)
        if action.edge == "quotes" and not path.num_steps:
            format = self._quoting[path.work.command.action]
            spans = format.quote(action.template, path.work.contexts, self._problem.for_agents())
            turn.branch = Branch(path.branch.codec, path.branch.node, ())
            turn.take(*prompt_segments(path.branch.codec, spans))
        if action.text:
            ids = span_ids(turn.branch.codec, [Span(action.text, is_trusted=True)])
            turn.take(Segment("given", token_array(ids)))
            turn.stop = "answer"
        path.turn = turn
        return turn

    async def _act(self, turn: Turn, path: Path) -> bool:
        """Act on how the generation ended: end the path, or add an observation. True = the same step goes on."""
        assert turn.finish is not None
        action = self._read(turn) if turn.finish.kind == "stop" else None
        if action is None and turn.finish.kind == "stop":
            if turn.message is None:
                return False
            turn.finish = Finish("end_of_sequence")
        if action is None and turn.finish.kind == "end_of_sequence" and self._turns is not None:
            action = _turn_action(turn, self._turns)
        ruling = self._rule(turn, path, action)
        match ruling.action, action:
            case "continue", _:
                if turn.finish.kind == "stop" and self._is_beyond_limit(turn):
                    turn.take(Segment("given", token_array(turn.branch.codec.encode(LIMIT_WARNING))))
                turn.finish = None
            case "call_tool", ToolAction() | TurnAction():
                await self._use_tool(turn, path, action)
            case "call_tool_error", None:
                call = ToolCall("", turn.branch.run_text, "invalid", "the turn holds no action")
                self._observe(turn, path, InvalidAction(call.result), call)
            case "call_tool_error", InvalidAction(reason):
                self._observe(turn, path, action, ToolCall("", turn.branch.run_text, "invalid", reason))
            case "call_tool_error", ToolAction(tool, arguments):
                self._observe(turn, path, action, ToolCall(tool, arguments, "invalid", "the call was empty"))
            case _:
                self._end(turn, path, ruling)
        return turn.finish is None

    def _read(self, turn: Turn) -> Action | None:
        """The action at the end of what the model has just written."""
        if turn.message is not None and self._in_messages is not None:
            return self._in_messages.hear(turn.message)
        return self._format.read(turn.branch.run_text)

    def _end(self, turn: Turn, path: Path, ruling: Ruling) -> None:
        turn.stop = ruling.stop
        end = turn.branch.codec.eos_id
        if ruling.forced_eos_trained and end is not None and self._room(turn, path)[0] > 0:
            # The published rules train this token, which nobody sampled. Here it is given, with weight 0.
            turn.take(Segment("given", token_array((end,))))
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
                calls_made=_num_calls(turn.branch),
                call_limit=config.max_tool_calls,
                response_tokens=turn.branch.num_response_tokens,
                max_response_tokens=config.max_response_tokens,
                is_context_full=turn.branch.num_tokens >= self._sampler.context_length(path.work.command.action),
                is_last_turn=self._is_last_turn(turn),
                is_turn_full=self._is_full(turn, path),
            ),
        )

    def _is_last_turn(self, turn: Turn) -> bool:
        return self._config.max_turns is not None and turn.branch.num_turns >= self._config.max_turns

    def _is_full(self, turn: Turn, path: Path) -> bool:
        """Whether the turn has as many tokens as its action may sample."""
        return turn.is_full(self._actions[path.work.command.action].max_tokens)

    def _is_beyond_limit(self, turn: Turn) -> bool:
        """Whether the call is beyond the limit and the path still goes on."""
        return self._policy.at_limit == "warn" and _num_calls(turn.branch) >= self._config.max_tool_calls

    async def _use_tool(self, turn: Turn, path: Path, action: ToolAction | TurnAction) -> None:
        if path.left("tool_calls") == 0:
            turn.stop = "budget"
            return
        model = self._model(turn, path)
        try:
            async with asyncio.timeout_at(path.work.deadline):
                call = await self._toolbox.call(path.work.tree, turn.branch, action, seed=turn.seed, model=model)
        except TimeoutError:
            turn.stop = "deadline"
            return
        finally:
            path.asides.extend(() if model is None else model.close())
        if model is not None and model.down is not None:
            raise model.down
        if call.status in ("timeout", "crashed") and (stop := classify_failed_tool(self._policy).stop) is not None:
            turn.take(Segment("given", token_array(()), tool_call=call))
            turn.stop = stop
            turn.notes["tool"] = call.result
        else:
            self._observe(turn, path, action, call)

    def _model(self, turn: Turn, path: Path) -> WorldModel | None:
        """The model that the environment may ask in this step; None = it asks none."""
        asking, action = self._judging.asking, None if self._world is None else self._world.action
        if asking is None or action is None:
            return None
        return WorldModel(turn, path, self._problem, asking=asking, action=action)

    def _observe(self, turn: Turn, path: Path, action: Action, call: ToolCall) -> None:
        """Write the observation, cut to the available room. The path ends if the observation fills it, if it answers
        the last turn, or if the environment says so, which comes first."""
        if self._world is not None and call.reward is not None and self._world.reward.rule != "last":
            num_before = len(self._world.steps(turn.branch.tool_calls))
            turn.notes[EARNED] = self._world.reward.earned(call.reward, num_before)
        if call.end is not None and not call.result:
            turn.take(Segment("given", token_array(()), tool_call=call, attachments=call.attachments))
        else:
            self._write(turn, path, action, call)
        if isinstance(action, TurnAction) and self._is_last_turn(turn):
            turn.stop = turn.stop or "turn_limit"
        turn.stop = ENDS[call.end] if call.end is not None else turn.stop

    def _write(self, turn: Turn, path: Path, action: Action, call: ToolCall) -> None:
        spans = self._observation(turn, action, call)
        if messages := message_segments("given", turn.branch.codec, spans):
            first = replace(messages[0], tool_call=call, attachments=call.attachments)
            turn.take(first, *messages[1:])
            room, word = self._room(turn, path)
            turn.stop = word if room < 1 else None
            return
        ids = token_array(span_ids(turn.branch.codec, spans)[: self._config.max_observation_tokens])
        if turn.finish is not None and turn.finish.kind == "end_of_sequence":
            ids = behind_end(ids, int(turn.branch.run[-1]), turn.branch.codec)
        room, word = self._room(turn, path)
        turn.take(Segment("given", ids[: max(room, 0)], tool_call=call, attachments=call.attachments))
        if len(ids) >= room:
            turn.stop = word

    def _room(self, turn: Turn, path: Path) -> tuple[int, str]:
        """Most tokens an observation may have, and the stop word if it has that many."""
        response = self._config.max_response_tokens - turn.branch.num_response_tokens
        context = self._sampler.context_length(path.work.command.action) - turn.branch.num_tokens
        return min((response, "length"), (context, "context_full"))

    def _observation(self, turn: Turn, action: Action, call: ToolCall) -> str | Sequence[Span]:
        """The observation. If it exceeds its own limit, by default the tool's text is cut and the frame around it stays
        whole."""
        result = ToolResult(call.result, call.status, call.metadata, call.attachments)
        codec, message = turn.branch.codec, turn.message
        limit, whole = self._config.max_observation_tokens, len(result.text)

        def written(num_characters: int) -> str | Sequence[Span]:
            cut = result if num_characters == whole else replace(result, text=result.text[:num_characters])
            if message is not None and self._in_messages is not None:
                return self._in_messages.reply(message, action, cut)
            return self._format.observe(action, cut)

        def size(spans: str | Sequence[Span]) -> int:
            num_ids = len(span_ids(codec, spans))
            return num_ids if codec.is_exact else estimated_tokens(num_ids)

        spans = written(whole)
        is_cut_behind = message is None and self._config.observation_cut == "end"
        if limit is None or is_cut_behind or size(spans) <= limit:
            return spans
        fitting = bisect_right(range(whole), limit, key=lambda n: size(written(n)))
        return written(max(0, fitting - 1))

    async def _prune_at_end(self, turn: Turn, path: Path) -> None:
        """End the path if the format or the prune rule says so. Random termination may let it go on."""
        reason = None if self._giving_up is None else self._giving_up.give_up(turn.branch)
        if reason is not None:
            _give_up(turn, reason, _word_of(reason))
        elif self._pruning is not None:
            of_state = self.state_score(path.work.tree)
            asked = await self._pruning.ask(turn.branch, self._problem, of_state)
            turn.scores = asked.scores
            if asked.fault is not None:
                turn.notes["judge"] = asked.fault
            if asked.reason is not None:
                self._toss(turn, asked.reason)

    def _toss(self, turn: Turn, reason: str) -> None:
        keep = self._config.keep
        if keep and coin(turn.seed) < keep:
            turn.notes[KEPT] = keep
        else:
            _give_up(turn, reason, ROULETTE if keep else _word_of(reason))

    def _is_to_judge(self, stop: str | None) -> bool:
        return stop is not None and stop != ROULETTE and not stop_word(stop).is_failure

    def _is_policy(self, path: Path) -> bool:
        action = self._actions[path.work.command.action]
        return action.role == "policy" and action.edge == "continues"

    async def _closed(self, turn: Turn, path: Path) -> Step:
        """The finished step: measured, and judged if it is a leaf."""
        name = path.work.command.action
        action = self._actions[name]
        scores = turn.scores
        if self._is_to_judge(turn.stop) and action.role == "policy":
            of_state = self.state_score(path.work.tree)
            of_leaf, fault = await self._judging.leaf_scores(turn.branch, self._problem, of_state)
            scores += of_leaf
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
            asides=path.taken_asides(),
        )

    def _measured(self, turn: Turn) -> dict[str, float]:
        """Measures of the whole step that need more than its own logprobs."""
        value = step_entropy_topk(turn.topk, turn.branch.codec.vocab_size) if turn.topk else None
        return {} if value is None else {STEP_ENTROPY: value}


def _turn_action(turn: Turn, format: TurnFormat) -> TurnAction | InvalidAction:
    """A whole turn that holds no other action, for an environment that answers every turn."""
    if turn.message is not None:
        said = format.turn(text_of(turn.message))
    else:
        end = turn.branch.codec.eos_id
        said = format.turn(turn.branch.run_text.removesuffix("" if end is None else turn.branch.codec.decode([end])))
    return InvalidAction("the turn says nothing") if said is None else TurnAction(said)


def _give_up(turn: Turn, reason: str, stop: str) -> None:
    turn.stop = stop
    turn.notes["closed"] = reason


def _word_of(reason: str) -> str:
    """The stop word of a path that is given up for this reason."""
    word = reason.partition(":")[0]
    return word if word in PRUNE_WORDS else "closed"


def _num_calls(branch: Branch) -> int:
    """Tool calls on a branch, without those that were no action."""
    return sum(call.tool != "" for call in branch.tool_calls)
