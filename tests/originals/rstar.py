"""microsoft/rStar, branch rStar-math: its solver with MCTS and with step beam search on a scripted world.

Its answers are compared as text. Its reward model always gives a number, so none is missing here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tests.originals.rstar_world import GOLD, JOINED, QUESTION, UNTAGGED, Given, World, shown
from tests.originals.sources import DIFFERS, imports, source

ABSENT: Final = (
    "math_evaluation",
    "omegaconf",
    "pebble",
    "rstar_deepthink.llms.llm_engine",
    "termcolor",
    "timeout_decorator",
    "torch",
    "tqdm",
    "utils",
    "utils.checker",
    "utils.math_equal",
    "utils.util",
    "vllm",
    "vllm.outputs",
)
MODULES: Final = ("solver", "agents.mcts", "agents.beam_search", "agents.tree", "agents.utils")


def unsaid(*words: object) -> None:
    """Prints nothing."""


class Progress:
    """A progress bar that shows nothing."""

    def __init__(self, items: Sequence[Any] = (), **_: Any) -> None:
        self._items = items

    def __iter__(self) -> Any:
        return iter(self._items)

    def update(self, number: int) -> None: ...

    def close(self) -> None: ...


class Pool:
    """A pool of processes that works in this one."""

    def __init__(self, max_workers: int) -> None: ...

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[..., Any], *items: Sequence[Any], timeout: float) -> Any:
        return SimpleNamespace(result=lambda: map(function, *items))


@dataclass(frozen=True)
class Seen:
    """Serves a world to a solver, as its engine and its reward model, and remembers what happened."""

    world: World
    prompts: list[str] = field(default_factory=list[str])
    rollouts: list[list[list[str]]] = field(default_factory=list[list[list[str]]])
    """Rollout -> step -> tags of the nodes it stood on."""
    causes: set[str] = field(default_factory=set[str])

    def generate(self, prompts: Sequence[str], sampling_params: Any) -> list[Any]:
        self.prompts.extend(prompts)
        width = self.world.given["width"]
        return [SimpleNamespace(outputs=[self._sample(prompt, i) for i in range(width)]) for prompt in prompts]

    def reward(self, prompts: Sequence[Mapping[str, str]]) -> list[Any]:
        return [SimpleNamespace(value_estimate=self.world.value(prompt["text"])) for prompt in prompts]

    def _sample(self, prompt: str, index: int) -> Any:
        text, tag = self.world.says(prompt, index)
        self.causes.update([] if tag else [UNTAGGED])
        return SimpleNamespace(text=text, stop_reason=tag or None)


def watched(kind: Any, seen: Seen) -> Any:
    """A class of agents that tells where it stands."""

    class Agent(kind):
        def select_next_step(self, outputs: Any = None, from_root: bool = False) -> None:
            seen.rollouts.extend([[]] if from_root else [])
            super().select_next_step(outputs, from_root)

        def should_generate_next(self) -> bool:
            goes_on = super().should_generate_next()
            seen.rollouts[-1].extend([[node.tag for node in self.current_nodes]] if goes_on else [])
            return goes_on

        def generate_next_step(self, outputs: Sequence[Any]) -> None:
            is_joined = any(map(self.is_ignored_node, self.current_nodes[: len(outputs)]))
            seen.causes.update([JOINED] if is_joined else [])
            super().generate_next_step(outputs)

    return Agent


@dataclass(frozen=True)
class Original:
    """Its modules, with stand-ins for what they run on."""

    root: Path
    solver: Any
    mcts: Any
    beam_search: Any
    tree: Any
    utils: Any

    @classmethod
    def found(cls) -> "Original":
        root = source("RAMIFY_RSTAR", "microsoft/rStar, branch rStar-math", "rstar_deepthink/agents/mcts.py")
        with imports(root, absent=ABSENT) as get:
            found = cls(root, *(get(f"rstar_deepthink.{name}") for name in MODULES))
        found.solver.tqdm, found.solver.ProcessPool, found.solver.print = Progress, Pool, unsaid
        found.mcts.is_equiv = str.__eq__
        return found

    def config(self, given: Given, **fields: Any) -> Any:
        """Its configuration for a scenario: the recipe of evaluation, with other `fields`."""
        config = type("Config", (self.solver.DictConfig,), {})()
        shots = self.root / "rstar_deepthink" / "few_shots"
        vars(config).update(
            model_dir=str(self.root),
            few_shot_path=str(shots / "few_shots.json"),
            prompt_path=str(shots / "sft_prompt.json"),
            num_few_shot=0,
            prompt_wrap="set below",
            step_delim="\n",
            stop=[],
            n_generate_sample=given["width"],
            max_depth=given["max_depth"],
            step_beam_width=1,
            is_sampling=False,
            need_value_func=True,
            update_leaf_value=True,
            terminal_sample=False,
            save_intermediate_rollouts=False,
        )
        vars(config).update(fields)
        return config

    def played(self, given: Given, kind: Any, config: Any) -> tuple[Any, Mapping[str, Any]]:
        """The agent after its search; where it stood at each step of each rollout, and what it asked the policy."""
        seen, generate = Seen(World(given)), self.solver.llm_generate

        class Solver(self.solver.Solver):
            def create_rm(self) -> Any:
                return seen.reward

            def create_llm(self) -> Any:
                return lambda prompts, params: generate(prompts, params, seen)

        self.tree.tools["python_interpreter"] = seen.world.runs
        agent = watched(kind, seen)(config=config, question=QUESTION, ground_truth=GOLD)
        agent.prompt_wrap, agent.obs_wrap = self.utils.rstar_prompt_wrap, self.utils.rstar_obs_wrap
        agent.step_unwrap = self.utils.rstar_step_result_unwrap
        Solver(config=config).solve([agent], "", [])
        cause = min(seen.causes, default="")
        return agent, {"rollouts": seen.rollouts, "prompts": seen.prompts, DIFFERS: cause}

    def nodes(self, root: Any) -> Mapping[str, Mapping[str, object]]:
        """What a tree came to: tag -> the node's text, whether and how it ended, and its numbers."""
        found = [root]
        for node in found:
            found.extend(node.children)
        return {node.tag: self._row(node) for node in found}

    def _row(self, node: Any) -> Mapping[str, object]:
        words = {
            self.mcts.NO_VALID_CHILD: "no_valid_child",
            self.mcts.TOO_MANY_CODE_ERRORS: "too_many_code_errors",
            self.mcts.TOO_MANY_STEPS: "too_many_steps",
        }
        said = node.state["final_answer"]
        answer = words.get(said, said) or None
        is_counted = isinstance(node, self.mcts.MCTSNode)
        numbers = {"visits": node.visit_count(), "q": node.q_value()} if is_counted else {"value": node.value}
        text = shown(node.state["text"], answer)
        return {"text": text, "terminal": node.is_terminal, "answer": answer, **numbers}


def original_mcts() -> Callable[[Given], Mapping[str, object]]:
    found = Original.found()

    def played(given: Given) -> Mapping[str, object]:
        is_judged = given["mode"] != "sampling"
        config = found.config(
            given,
            mode="mcts",
            iterations=given["iterations"],
            c_puct=given["exploration"],
            errors_threshold=given["errors_threshold"],
            positive_reward=given["positive_reward"],
            negative_reward=given["negative_reward"],
            is_sampling=given["mode"] != "evaluation",
            need_value_func=is_judged,
            update_leaf_value=is_judged,
            terminal_sample=not is_judged,
        )
        agent, seen = found.played(given, found.mcts.MCTS, config)
        metric = agent.intermediate_metric
        bests = list(zip(metric["rollout_indexs"], metric["answers"], metric["value_estimate"], strict=True))
        return {
            **seen,
            "nodes": found.nodes(agent.root),
            "finals": [node.tag for node in agent.final_answer_nodes],
            "bests": bests,
            "answer": max(bests, key=lambda best: best[2])[1] if bests else None,
        }

    return played


def original_beam() -> Callable[[Given], Mapping[str, object]]:
    found = Original.found()

    def played(given: Given) -> Mapping[str, object]:
        config = found.config(given, mode="bs", step_beam_width=given["beams"])
        agent, seen = found.played(given, found.beam_search.BS, config)
        solutions = agent.get_steps()
        return {
            **seen,
            "nodes": found.nodes(agent.root),
            "finals": [node.tag for node in agent.final_answer_nodes],
            "solutions": [[one["tag"], one["final_answer"], one["value"]] for one in solutions],
            "answer": solutions[0]["final_answer"] if solutions else None,
        }

    return played
