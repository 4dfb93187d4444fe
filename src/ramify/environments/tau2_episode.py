# pyright: reportMissingImports=false
"""tau2 episode: one conversation of tau2, on one branch of a tree.

tau2's Orchestrator is driven message by message. The agent and the customer in it are slots that say what was put in,
so that both models are asked by the run. `Orchestrator.run` checks the limits of steps and errors; here the episode
does. tau2's limit of seconds is left out, because a replay would end elsewhere.

A fork shares the databases until one of both makes a call that writes, as tau2 declares it of each function; only then
they are copied. tau2's own evaluator relies on the same declaration. Source: tau2 1.0.1, orchestrator/orchestrator.py,
environment/environment.py, evaluator/evaluator.py.
"""

import copy
import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from ramify.core.branch import Branch
from ramify.core.environment import TURN, AgentTurn, AskModel, Observation
from ramify.core.errors import ConfigError, JudgeError, ToolError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.edge.error_text import error_text
from ramify.edge.user_calls import returned
from ramify.environments.blocking import THREADS
from ramify.environments.state_digest import state_digest
from ramify.environments.tau2_dialogue import call_in, user_prompt
from ramify.tools.arguments import read_arguments

T = TypeVar("T")
SAY_SOMETHING: Final = "The turn is empty. Write to the customer, or call a function."


class Slot:
    """Stands for the agent, or the customer, in an Orchestrator: says the message that was put in."""

    def __init__(self) -> None:
        self.said: Any = None

    def get_init_state(self, message_history: object = None) -> None:
        return None

    def generate_next_message(self, message: object, state: object) -> tuple[Any, object]:
        return self.said, state

    def is_stop(self, message: object) -> bool:
        return False

    def stop(self, message: object = None, state: object = None) -> None:
        pass


class StepIds:
    """Stands for the module `uuid` in the tools of telecom, which give new bills random ids: within a step, ids are a
    function of the path. Elsewhere, as in tau2's evaluator, they stay random."""

    def __init__(self) -> None:
        self._local = threading.local()

    @contextmanager
    def drawn_by(self, seed: int) -> Iterator[None]:
        """Draw the ids of this thread from `seed`."""
        self._local.draws = random.Random(seed)
        try:
            yield
        finally:
            del self._local.draws

    def uuid4(self) -> uuid.UUID:
        draws: random.Random | None = vars(self._local).get("draws")
        return uuid.uuid4() if draws is None else uuid.UUID(int=draws.getrandbits(128), version=4)


IDS: Final = StepIds()


def seed_ids() -> None:
    """Put `IDS` in its place."""
    from tau2.domains.telecom import tools

    tools.uuid = IDS


@dataclass(frozen=True, slots=True)
class Scene:
    """What does not change in the conversations of one task."""

    kwargs: Mapping[str, Any]
    """What the constructor of the domain gets, also from the evaluator."""
    functions: Mapping[str, Mapping[str, Any]]
    """Name -> schema of the arguments, of what the agent can call."""
    guidelines: str = ""
    """tau2's for the customer, with the scenario of the task."""
    customers: Sequence[Mapping[str, Any]] = ()
    """What the customer can call, in OpenAI's function format."""


@dataclass(slots=True)
class Tau2Episode:
    """A conversation: the agent speaks, and the customer or the domain's functions answer."""

    scene: Scene
    run: Any
    """tau2's Orchestrator, in which the next message is the agent's, or which has ended."""
    is_shared: bool = False
    """Whether another episode may act on the same databases."""
    databases: Sequence[str | None] = ()
    """Hashes of the agent's and of the customer's database."""

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        raise ToolError("tool_gave_up", "the customer is played by a model, and there is none here")

    async def step_by(self, ask: AskModel, turn: AgentTurn, seed: int) -> Observation:
        """A call of a function, or words for the customer, whose model may make calls before it answers. `seed` is not
        used: tau2 draws nothing."""
        try:
            said = self._agents(turn)
        except ValueError as error:
            return Observation(str(error), status="error")
        await in_thread(self._say, self.run.agent, said)
        while not self.run.done and self.run.to_role.value == "user":
            await in_thread(self._say, self.run.user, await self._customers(ask))
        reason = self.run.termination_reason
        is_over = reason is not None and reason.value in ("agent_stop", "user_stop")
        answer = self.run.message if self.run.from_role.value != "agent" else None
        is_error = answer is not None and answer.role == "tool" and answer.error
        return Observation(
            "" if answer is None else answer.content,
            status="error" if is_error else "ok",
            end=("done" if is_over else "truncated") if self.run.done else None,
        )

    async def fork(self) -> "Tau2Episode":
        run = copy.copy(self.run)
        run.agent, run.user, run.trajectory = Slot(), Slot(), list(run.trajectory)
        self.is_shared = True
        return replace(self, run=run)

    def digest(self) -> str | None:
        told = [[each.role, each.content, _dumped(each)] for each in self.run.trajectory]
        return state_digest(list(self.databases), told, self.run.done)

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        """tau2's reward, by the criteria that the task names; each is a part. A conversation that has not ended is 0,
        as in tau2. Raises `JudgeError` in the words of the evaluator. Does not change the episode."""
        try:
            return await in_thread(self._scored)
        except Exception as error:  # boundary to the domain's code
            raise JudgeError(f"tau2 cannot score the task {self.run.task.id}: {error_text(error)}") from error

    async def close(self) -> None:
        pass

    def _agents(self, turn: AgentTurn) -> Any:
        """The agent's turn as tau2's message. Raises `ValueError` with words for the model."""
        from tau2.data_model.message import AssistantMessage, ToolCall

        if turn.tool == TURN:
            if not turn.text.strip():
                raise ValueError(SAY_SOMETHING)
            return AssistantMessage(role="assistant", content=turn.text)
        if turn.tool not in self.scene.functions:
            raise ValueError(f"there is no function {turn.tool!r}")
        arguments = read_arguments(turn.arguments, self.scene.functions[turn.tool])
        call = ToolCall(id=self._call_id(), name=turn.tool, arguments=arguments)
        return AssistantMessage(role="assistant", tool_calls=[call])

    async def _customers(self, ask: AskModel) -> Any:
        """The customer's next message. An empty reply is asked for again, until the run refuses."""
        from tau2.data_model.message import ToolCall, UserMessage

        prompt = user_prompt(self.scene.guidelines, self.scene.customers, self.run.trajectory)
        while not (said := (await ask(prompt)).text.strip()):
            pass
        called = call_in(said) if self.scene.customers else None
        if called is None:
            return UserMessage(role="user", content=said)
        name, arguments = called
        call = ToolCall(id=self._call_id(), name=name, arguments=dict(arguments), requestor="user")
        return UserMessage(role="user", tool_calls=[call])

    def _call_id(self) -> str:
        return f"call_{len(self.run.trajectory)}"

    def _say(self, speaker: Slot, message: Any) -> None:
        """Let a speaker say a message, and the domain answer the calls in it. Blocks."""
        run, calls = self.run, message.tool_calls or ()
        is_writing = any(run.environment._is_mutating_tool(call.name) for call in calls)
        if is_writing and self.is_shared:
            run.environment, self.is_shared = _copied(run.environment), False
        speaker.said = message
        with IDS.drawn_by(len(run.trajectory)):
            run.step()
            if calls:
                run.step()
        run._check_termination()
        if is_writing:
            self.databases = hashes(run.environment)

    def _scored(self) -> Verdict:
        from tau2.data_model.simulation import TerminationReason
        from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation

        run = copy.copy(self.run)
        if not run.done:
            run.termination_reason = TerminationReason.MAX_STEPS
        # tau2 sorts messages by their times, which a clock that is set back would mix up.
        run.trajectory = [m.model_copy(update={"timestamp": f"{i:09}"}) for i, m in enumerate(run.trajectory)]
        info = evaluate_simulation(
            run._finalize(), run.task, EvaluationType.ALL, False, run.domain, env_kwargs=dict(self.scene.kwargs)
        )
        parts = {kind.value.lower(): float(amount) for kind, amount in (info.reward_breakdown or {}).items()}
        return Verdict(float(info.reward), parts)


def opened(domain: str, task: Any, environment: Any, *, scene: Scene, limits: Mapping[str, int]) -> Tau2Episode:
    """The conversation of `task` before the agent's first turn. Raises `ConfigError` for a task in which somebody else
    must speak first. Blocks. `limits`: of the Orchestrator."""
    from tau2.orchestrator.orchestrator import Orchestrator, Role
    from tau2.utils.utils import get_now

    run: Any = Orchestrator(domain, Slot(), Slot(), environment, task, **limits)
    run._run_start_time, run._run_start_perf = get_now(), time.perf_counter()
    with IDS.drawn_by(0):
        run.initialize()
    if (run.from_role, run.to_role) == (Role.AGENT, Role.USER) and not run.done:  # The agent says these words itself.
        run.trajectory.pop()
        run.from_role, run.to_role = Role.USER, Role.AGENT
    if run.done or run.to_role is not Role.AGENT:
        raise ConfigError(
            f"task {task.id} of tau2's domain {domain!r} begins with a turn that is not the agent's; name other tasks "
            "by environment.options.tasks"
        )
    return Tau2Episode(scene, run, databases=hashes(environment))


def scene_of(
    task: Any, environment: Any, *, kwargs: Mapping[str, Any], functions: Sequence[Mapping[str, Any]]
) -> Scene:
    """The scene of a task, with the customer as tau2 builds it. `functions`: the agent's."""
    from tau2.user.user_simulator import UserSimulator

    tools = environment.get_user_tools(include=task.user_tools) if environment.user_tools is not None else []
    user = UserSimulator(llm="", instructions=str(task.user_scenario), tools=tools or None)
    parameters = {function["name"]: function["parameters"] for function in functions}
    return Scene(kwargs, parameters, user.system_prompt, [tool.openai_schema["function"] for tool in tools])


def hashes(environment: Any) -> Sequence[str | None]:
    """Hashes of the agent's and of the customer's database; None = there is none."""
    return environment.get_db_hash(), environment.get_user_db_hash()


def _copied(environment: Any) -> Any:
    """A copy of a domain with its databases. Raises `ToolError`."""
    try:
        return copy.deepcopy(environment)
    except Exception as error:
        raise ToolError("not_copied", f"the domain cannot be copied ({error}); set branching = 'replay'") from error


async def in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """The result of a call that blocks."""
    return await returned(partial(call, *arguments), THREADS)


def _dumped(message: Any) -> str:
    calls = None if message.role == "tool" else message.tool_calls
    return json.dumps([call.model_dump() for call in calls or ()], sort_keys=True)
