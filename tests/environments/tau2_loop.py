# ruff: noqa: T201
"""tau2's own loop over given turns: its Orchestrator with an agent and a customer that say what they are told to say.

`python -m tests.environments.tau2_loop 3` grows chains of 3 tasks of the domain `mock` with ramify, runs the same turns
through tau2's own loop, and prints both mean rewards, turns per second and milliseconds of a fork. `RETAIL=1` measures
forks of `retail` too. It needs tau2 and TAU2_DATA_DIR.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ramify
from ramify.core.environment import REPLIES, TURN, AgentTurn
from ramify.core.judge import Reply
from ramify.environments.task import EnvironmentTask
from ramify.environments.tau2 import TASK, Tau2
from ramify.environments.tau2_dialogue import NOW_OR_CALL, call_in
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn
from ramify.tools.arguments import read_arguments

HELLO, DONE = "Hello, what can I do for you?", "That is done."
TASKS = ("create_task_1", "update_task_1", "update_task_with_user_tools")
"""Tasks that begin with the agent's greeting."""
CALLS = (
    '<create_task>{"user_id": "user_1", "title": "Important Meeting"}</create_task>',
    '<create_task>{"user_id": "user_1", "title": "Another Meeting"}</create_task>',
    '<create_task>{"user_id": "nobody", "title": "Important Meeting"}</create_task>',
    '<update_task_status>{"task_id": "task_1", "status": "completed"}</update_task_status>',
    "<get_users>{}</get_users>",
    '<transfer_to_human_agents>{"summary": "I cannot help."}</transfer_to_human_agents>',
)


def talking(turn: ScriptedTurn) -> str:
    """An agent who greets, chooses calls by the seed and says that it is done; and a customer who looks at notices."""
    choice = turn.seed >> 3
    if NOW_OR_CALL in turn.context:
        dialogue = turn.context.rpartition("The conversation so far:")[2]
        if DONE in dialogue:
            return "Thank you. ###STOP###" if choice % 3 else 'CALL dismiss_notification {"notification_id": "notif_1"}'
        return f"Please help me, for the {choice % 100}th time." if choice % 4 else "CALL check_notifications {}"
    if HELLO not in turn.context:
        return HELLO
    return DONE if choice % 3 == 0 else CALLS[choice // 3 % len(CALLS)]


def grown_chains(environment: Tau2, preset: str, *, prompts: int = 1, seed: int = 1, **settings: Any) -> list[Any]:
    """(uid, steps, reward, parts) of every leaf that ramify grew. A step: name of a function ('' = none), its arguments
    or the words, and the customer's replies."""
    options: dict[str, Any] = {"max_failed_share": 0.0, "growth.max_response_tokens": 4000, **settings}
    grown = ramify.rollout_sync(
        task=EnvironmentTask(environment),
        engine=Scripted(talking),
        preset=preset,
        prompts=prompts,
        seed=seed,
        **options,
    )
    return [_leaf(tree, node) for tree in grown.trees for node in tree.leaves() if tree.reward(node) is not None]


def _leaf(tree: Any, node: int) -> Any:
    (score,) = (score for score in tree.scores(node) if score.judge == "environment")
    calls = [call for call in tree.branch(node).tool_calls if call.status in ("ok", "empty", "error")]
    steps = [(call.tool, call.arguments, [reply["text"] for reply in call.metadata.get(REPLIES, ())]) for call in calls]
    return tree.problem.uid, steps, tree.reward(node), dict(score.parts)


class Told:
    """An agent, or a customer, of tau2 that says the given messages in order."""

    def __init__(self, messages: Sequence[Any]) -> None:
        self._messages = list(messages)

    def get_init_state(self, message_history: object = None) -> None:
        return None

    def generate_next_message(self, message: object, state: object) -> tuple[Any, object]:
        from tau2.utils.utils import get_now

        said = self._messages.pop(0)
        said.timestamp = get_now()  # tau2 sorts messages by their times
        return said, state

    def is_stop(self, message: object) -> bool:
        return False

    def stop(self, message: object = None, state: object = None) -> None:
        pass


def own_run(task: Any, steps: Sequence[Any], parameters: Mapping[str, Any]) -> Any:
    """The reward of tau2's own run of a path, whose fixed greeting stands for the agent's first words. `parameters`:
    name -> schema of the arguments of the agent's functions."""
    from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
    from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
    from tau2.orchestrator.orchestrator import Orchestrator
    from tau2.registry import registry

    agents: list[Any] = []
    customers: list[Any] = []
    for number, (tool, words, replies) in enumerate(steps):
        if tool == TURN:
            agents.append(AssistantMessage(role="assistant", content=words))
        else:
            call = ToolCall(id=f"a{number}", name=tool, arguments=read_arguments(words, parameters[tool]))
            agents.append(AssistantMessage(role="assistant", tool_calls=[call]))
        for order, said in enumerate(replies):
            if (called := call_in(said)) is None:
                customers.append(UserMessage(role="user", content=said.strip()))
            else:
                name, given = called
                call = ToolCall(id=f"u{number}-{order}", name=name, arguments=dict(given), requestor="user")
                customers.append(UserMessage(role="user", tool_calls=[call]))
    environment = registry.get_env_constructor("mock")()
    run: Any = Orchestrator("mock", Told(agents[1:]), Told(customers), environment, task, max_steps=200)
    simulation = run.run()
    return evaluate_simulation(simulation, task, EvaluationType.ALL, False, "mock")


def is_over(steps: Sequence[Any]) -> bool:
    """Whether the customer ended a path; tau2's own loop has none of ramify's limits."""
    return bool(steps and steps[-1][2] and "###STOP###" in steps[-1][2][-1])


async def fork_ms(domain: str, call: AgentTurn) -> tuple[float, float]:
    """Milliseconds of a fork, and of the first call that writes in it, against that call in an episode of its own."""

    async def ask(prompt: str) -> Reply:
        return Reply("Go on.")

    environment = Tau2(domain=domain, judged="skip")
    (problem,) = environment.problems("train", 1, 0)
    episode = await environment.open(problem, 0)
    await episode.step_by(ask, AgentTurn(text=HELLO), 0)
    took_s: list[list[float]] = [[], []]
    for _ in range(10):
        began = time.perf_counter()
        branch = await episode.fork()
        took_s[0].append(time.perf_counter() - began)
        began = time.perf_counter()
        await branch.step_by(ask, call, 0)
        first_s = time.perf_counter() - began
        began = time.perf_counter()
        await branch.step_by(ask, call, 0)
        took_s[1].append(first_s - (time.perf_counter() - began))
    fork, copy = (1e3 * sorted(each)[5] for each in took_s)
    return fork, copy


def main() -> None:
    """Print the mean reward of the same chains by ramify and by tau2, and turns per second."""
    environment = Tau2(domain="mock", tasks=TASKS)
    environment.check_start()
    from tau2.data_model.tasks import Task

    parameters = {each["name"]: each["parameters"] for each in environment.schemas}
    problems = {problem.uid: problem for problem in environment.problems("train", len(TASKS), 0)}
    grown_chains(environment, "chains")  # what is imported only once
    num_problems, seeds = min(3, int(sys.argv[1]) if sys.argv[1:] else 3), range(1, 11)
    began = time.perf_counter()
    leaves = [leaf for seed in seeds for leaf in grown_chains(environment, "chains", prompts=num_problems, seed=seed)]
    ours_s = time.perf_counter() - began
    tasks = {uid: Task.model_validate(problem.secret[TASK]) for uid, problem in problems.items()}
    num_ours = sum(len(steps) for _, steps, _, _ in leaves)
    leaves = [leaf for leaf in leaves if is_over(leaf[1])]
    began = time.perf_counter()
    own = [own_run(tasks[uid], steps, parameters).reward for uid, steps, _, _ in leaves]
    own_s = time.perf_counter() - began
    num_own = sum(len(steps) for _, steps, _, _ in leaves)
    same = sum(leaf[2] == reward for leaf, reward in zip(leaves, own, strict=True))
    print(f"{len(leaves)} chains, {same} with the same reward")
    print(f"mean reward: ramify {sum(leaf[2] for leaf in leaves) / len(own):.6f}, tau2 {sum(own) / len(own):.6f}")
    print(f"turns/s: ramify {num_ours / ours_s:.0f}, tau2's own loop {num_own / own_s:.0f}")
    writes = {"mock": AgentTurn(tool="create_task", arguments='{"user_id": "user_1", "title": "x"}')}
    if os.environ.get("RETAIL"):
        writes["retail"] = AgentTurn(tool="cancel_pending_order", arguments='{"order_id": "#0", "reason": "x"}')
    for domain, call in writes.items():
        fork, copy = asyncio.run(fork_ms(domain, call))
        print(f"{domain}: a fork {fork:.3f} ms, its first call that writes {copy:.2f} ms more")


if __name__ == "__main__":
    main()
