# pyright: reportMissingImports=false
"""Inspect episode: one sample of an Inspect task, on one branch of a tree.

Inspect keeps the state of a sample in ContextVars: the store, the sandboxes, the sample's state. A branch has a context
of its own, in which each call and each score runs as a task; a fork is a copy of the context with copies of what its
variables hold. Without that, all branches would write to one store, which belongs to the process. Source: inspect_ai
0.3.285, inspect_ai/util/_store.py, util/_sandbox/context.py, solver/_basic_agent.py.
"""

import asyncio
import copy
from collections.abc import Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ramify.core.branch import Branch, turns_of
from ramify.core.environment import TURN, AgentTurn, Observation
from ramify.core.errors import ConfigError, JudgeError, ToolError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.edge.error_text import error_text
from ramify.environments.inspect_sandbox import copied_sandbox, files_of, opened_sandboxes
from ramify.environments.inspect_scores import numbers_of
from ramify.environments.state_digest import state_digest
from ramify.formats.thoughts import without_thoughts
from ramify.tools.arguments import read_arguments

T = TypeVar("T")
MODEL: Final = "mockllm/model"
"""Inspect's own double. It is never asked."""


class ModelAsked(Exception):
    """The solver has asked the model for its first message. Private to this module."""


@dataclass(frozen=True, slots=True)
class SampleRules:
    """What all samples of a task share."""

    task: Any
    """inspect_ai.Task"""
    tools: Sequence[Any] = ()
    """Tools named by the user; empty = those that the solver gives."""
    submit: str = "submit"
    """Tool whose call ends the sample with its result as the answer."""
    reward_part: str | None = None
    """The part of a score with several values that is the reward."""


@dataclass(slots=True)
class SampleEpisode:
    """A sample with its state, in a context of its own."""

    rules: SampleRules
    sample: Any
    context: Context
    state: Any
    """inspect_ai.solver.TaskState"""
    sandboxes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        """A call of a tool, or a turn without a call. That ends the sample, unless the solver has a tool to submit an
        answer: then the model is asked to go on, as in `basic_agent`. `seed` is not used: Inspect has none."""
        if turn.tool == TURN:
            return self._said(turn.text)
        from inspect_ai.model import ChatMessageAssistant
        from inspect_ai.tool import ToolCall

        try:
            schema = next(each for each in await self.schemas() if each["name"] == turn.tool)
            arguments = read_arguments(turn.arguments, schema["parameters"])
        except (StopIteration, ValueError) as error:
            return Observation(str(error) or f"there is no tool {turn.tool!r}", status="error")
        call = ToolCall(id=f"call_{len(self.state.messages)}", function=turn.tool, arguments=arguments)
        self._add(ChatMessageAssistant(content="", tool_calls=[call]))
        results = await self._inside(self._executed())
        self.state.messages.extend(results)
        errors = [each.error.message for each in results if getattr(each, "error", None) is not None]
        text = "\n".join(errors or [each.text for each in results])
        if turn.tool == self.rules.submit and not errors:
            self.state.output.completion = text
            self.state.completed = True
        return Observation(text, status="error" if errors else "ok", end=self._end())

    async def fork(self) -> "SampleEpisode":
        from inspect_ai.log._transcript import Transcript, init_transcript
        from inspect_ai.util._sandbox.context import sandbox_environments_context_var
        from inspect_ai.util._store import init_subtask_store

        try:
            state = _copied(self.state)
        except Exception as error:
            raise ToolError("not_copied", f"the store cannot be copied ({error}); set branching = 'replay'") from error
        context = self.context.copy()
        sandboxes = {name: await asyncio.to_thread(copied_sandbox, each) for name, each in self.sandboxes.items()}
        context.run(init_transcript, Transcript())
        context.run(init_subtask_store, state.store)
        context.run(_set_state, state)
        if sandboxes:
            context.run(sandbox_environments_context_var.set, dict(sandboxes))
        return SampleEpisode(self.rules, self.sample, context, state, sandboxes)

    def digest(self) -> str | None:
        state, folders = self.state, [files_of(each) for each in self.sandboxes.values()]
        return state_digest(state.store._data, state.metadata, state.completed, state.output.completion, folders)

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        """The value of the first scorer; the values of all scorers are parts, and so is each entry of a value that is a
        dict. Raises `JudgeError` with the name and the words of a scorer that raises or gives no number. Does not
        change an episode that can be copied."""
        try:
            scored = await self.fork()
        except ToolError:  # such an episode replays, and ends here
            return await self._scored(branch)
        try:
            return await scored._scored(branch)
        finally:
            await scored.close()

    async def _scored(self, branch: Branch) -> Verdict | None:
        from inspect_ai.scorer import Target
        from inspect_ai.scorer._scorer import unique_scorer_name

        if not self.state.completed and (words := without_thoughts(turns_of(branch.said)[-1]).strip()):
            self._said(words)
        scores: list[dict[str, float]] = []
        names: list[str] = []
        target = Target(self.sample.target)
        for scorer in self.rules.task.scorer or ():
            names.append(unique_scorer_name(scorer, names))
            try:
                score = await self._inside(scorer(self.state, target))
            except Exception as error:
                raise JudgeError(f"scorer {names[-1]!r} raised {error_text(error)}") from error
            scores.append({} if score is None else numbers_of(names[-1], score.value))
        if not scores:
            return None
        return Verdict(
            self._reward(names[0], scores[0]), {part: each for score in scores for part, each in score.items()}
        )

    def _reward(self, name: str, score: Mapping[str, float]) -> float | None:
        """The reward in the score of the first scorer; None = it gave none. Raises `JudgeError`."""
        reward = score.get(name, score.get(f"{name}.{self.rules.reward_part}"))
        if score and reward is None:
            parts = [part.removeprefix(f"{name}.") for part in score]
            raise JudgeError(f"scorer {name!r} gives several values; set reward_part to one of {parts}")
        return reward

    async def close(self) -> None:
        for each in self.sandboxes.values():
            await asyncio.to_thread(each._sandbox.directory.cleanup)

    async def schemas(self) -> list[Mapping[str, Any]]:
        """The functions of the sample, in OpenAI's format."""
        from inspect_ai.tool._tool_def import tool_defs

        defs = await self._inside(tool_defs(self.state.tools))
        return [
            {
                "name": each.name,
                "description": each.description,
                "parameters": each.parameters.model_dump(mode="json", exclude_none=True),
            }
            for each in defs
        ]

    async def begin(self) -> None:
        """Open the sample's sandbox, and run the solver up to its first question to the model. Raises `ConfigError` if
        it never asks, and `ToolError` if it raises."""
        await self._inside(self._begun())

    async def _begun(self) -> None:
        from inspect_ai._eval.task.run import resolve_plan
        from inspect_ai.log._transcript import Transcript, init_transcript
        from inspect_ai.model import GenerateConfig, get_model
        from inspect_ai.model._model import init_active_model
        from inspect_ai.util._store import init_subtask_store

        model: Any = get_model(MODEL, memoize=False)
        model.generate = _ask
        init_active_model(model, GenerateConfig())
        init_transcript(Transcript())
        init_subtask_store(self.state.store)
        _set_state(self.state)
        self.sandboxes = await opened_sandboxes(self.rules.task, self.sample)
        if self.rules.tools:
            self.state.tools = list(self.rules.tools)
            return
        try:
            for solver in resolve_plan(self.rules.task, None).steps:
                self.state = await solver(self.state, _ask)
        except ModelAsked:
            return
        except Exception as error:
            raise ToolError(
                "no_solver", f"the solver does not run outside Inspect ({error_text(error)}): name its tools by tools ="
            ) from error
        raise ConfigError("the solver never asks the model; name the tools by tools =")

    async def _executed(self) -> list[Any]:
        from inspect_ai.model import execute_tools

        result = await execute_tools(self.state.messages, self.state.tools)
        return list(result.messages)

    def _said(self, words: str) -> Observation:
        """Add a turn without a call."""
        from inspect_ai.model import ChatMessageAssistant, ChatMessageUser
        from inspect_ai.solver._basic_agent import DEFAULT_CONTINUE_MESSAGE

        self._add(ChatMessageAssistant(content=words))
        if any(_name(tool) == self.rules.submit for tool in self.state.tools):
            self.state.messages.append(ChatMessageUser(content=DEFAULT_CONTINUE_MESSAGE))
            return Observation(DEFAULT_CONTINUE_MESSAGE, end=self._end())
        self.state.completed = True
        return Observation("", end="done")

    def _add(self, message: Any) -> None:
        from inspect_ai.model import ChatCompletionChoice, ModelOutput

        self.state.messages.append(message)
        self.state.output = ModelOutput(model=MODEL, choices=[ChatCompletionChoice(message=message.model_copy())])

    def _end(self) -> Any:
        if self.state.completed:
            return "done"
        most = self.rules.task.message_limit
        return "truncated" if most is not None and len(self.state.messages) >= most else None

    async def _inside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` as a task in the context of this branch."""
        return await asyncio.create_task(work, context=self.context)


def episode_of(rules: SampleRules, sample: Any) -> SampleEpisode:
    """A sample before `begin`."""
    from inspect_ai.model import ChatMessageUser, ModelName
    from inspect_ai.scorer import Target
    from inspect_ai.solver import TaskState

    own = [ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else list(sample.input)
    state = TaskState(
        model=ModelName(MODEL),
        sample_id=sample.id,
        epoch=1,
        input=sample.input,
        messages=own,
        target=Target(sample.target),
        choices=sample.choices,
        metadata=copy.deepcopy(sample.metadata) or {},
    )
    return SampleEpisode(rules, sample, copy_context(), state)


def _copied(state: Any) -> Any:
    """A TaskState with the same messages, and copies of all that tools change."""
    from inspect_ai.util import Store

    other = copy.copy(state)
    other._messages = copy.copy(state._messages)
    other._tools = list(state._tools)
    other._metadata = copy.deepcopy(state._metadata)
    other._output = state._output.model_copy(deep=True)
    other._store = Store(state._store._data)
    return other


def _set_state(state: Any) -> None:
    from inspect_ai.solver._task_state import set_sample_state

    set_sample_state(state)


async def _ask(*arguments: Any, **options: Any) -> Any:
    raise ModelAsked


def _name(tool: Any) -> str:
    from inspect_ai.tool import ToolDef

    return tool.name if isinstance(tool, ToolDef) else ToolDef(tool).name
