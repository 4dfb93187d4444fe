# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
# verl is not in the development environment.
"""Agent loop: verl's manager of rollouts, by which the n rows of a prompt are the leaves of one tree.

`actor_rollout_ref.rollout.agent.agent_loop_manager_class = ramify.integrations.verl.agent_loop.TreeAgentLoopManager`.
The model servers, their weights and their memory stay verl's. A batch has exactly the rows that verl asks for, in its
order; `rm_scores` holds each token's credit. Validation is answered by independent chains, scored by their rewards.

Source: verl 0.9.1, verl/experimental/agent_loop/agent_loop.py `AgentLoopManager`, verl/trainer/ppo/ray_trainer.py
`fit` and `_validate`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from ramify.config.configure import to_toml
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError, ExportError, RamifyError
from ramify.core.problem import Problem
from ramify.engines.tokenizer_json import TokenizerJson
from ramify.integrations.background_loop import background_loop, run_in_background
from ramify.integrations.evaluation import evaluation_config
from ramify.integrations.prompts import question_of
from ramify.integrations.trainer_config import task_of
from ramify.integrations.tree_rows import rows_for
from ramify.integrations.verl.config import training_config, validation_sampling
from ramify.integrations.verl.engine import VerlEngine
from ramify.judges.exact import ANSWER
from ramify.rows import verl
from ramify.rows.row import Row
from ramify.runner.build import build_engine
from ramify.runner.events import Event, TreeClosed
from ramify.runner.prepared import prepare
from ramify.runner.run import Run, Seedling

T = TypeVar("T")
MAX_TRIES: Final = 3
"""A prompt is grown at most so often: a tree may fail, or have fewer rows than verl asks for."""
AGAIN: Final = "its tree was grown again: an earlier one had failed, or had too few leaves"
"""Which trees are left out depends on what was sampled."""
GREEDY: Final = "__do_sample__"
"""verl's column of rows that REMAX samples greedily."""


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Rows of a batch that follow each other and have one prompt."""

    problem: Problem
    num_rows: int


class TreeAgentLoopManager:
    """Stands in for verl's `AgentLoopManager`. Mutable: it counts trees, and keeps a run for each configuration."""

    def __init__(
        self, config: Any, llm_client: Any, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> None:
        """Raises `ConfigError` for settings of verl that would train something else. verl's reward loop is not asked:
        the judges of the run's TOML score its leaves."""
        if teacher_client is not None:
            raise ConfigError("distillation (teacher models) is not computed on trees; turn it off")
        self.config = config
        self._training = training_config(config)
        self._engine = _engine(config, llm_client)
        self._runs = {to_toml(self._training): _made(self._training, self._engine)}
        self._num_trees = 0
        self._lock = asyncio.Lock()

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Any:
        """As verl's: the manager; inside an event loop, something to await that gives it."""
        made = cls(*args, **kwargs)
        return _either(_itself(made))

    def generate_sequences(self, prompts: Any) -> Any:
        """A `DataProto` with a row for each row of `prompts`; inside an event loop, something to await that gives it.

        Raises `RamifyError` if a prompt has no tree with as many rows after three tries, `ExportError` for a prompt or
        a response that is longer than verl's own limits."""
        return _either(self._generated(prompts))

    async def _generated(self, prompts: Any) -> Any:
        if GREEDY in prompts.non_tensor_batch:
            raise ConfigError(f"{GREEDY}: REMAX's greedy rows are no leaves of a tree; set algorithm.adv_estimator")
        begun = time.monotonic()
        is_validation = bool(prompts.meta_info.get("validate", False))
        step = prompts.meta_info.get("global_steps", -1)
        groups = self._groups(prompts, f"{'validation' if is_validation else 'step'}-{step}")
        async with self._lock:
            rows = await self._rows(groups, is_validation=is_validation)
        made = self._proto(rows, is_validation=is_validation)
        # verl's trackers show these under `timing_s`, where its own loop puts counts and lengths, too.
        figures = {"rollout": time.monotonic() - begun, "mean_reward": float(np.mean([row.reward for row in rows]))}
        made.meta_info = {
            "timing": {f"ramify/{name}": value for name, value in figures.items()},
            "reward_extra_keys": [],
        }
        return made

    def _groups(self, prompts: Any, batch: str) -> list[PromptGroup]:
        """The prompts of a batch, in order. Trees are seeded by the place of their prompt in it."""
        columns = prompts.non_tensor_batch
        if "uid" not in columns or "raw_prompt" not in columns:
            raise ConfigError(
                f"a batch has the columns {sorted(columns)}; uid and raw_prompt are needed: set data.return_raw_chat"
            )
        places = [list(places) for _, places in groupby(range(len(prompts)), key=lambda place: columns["uid"][place])]
        return [
            PromptGroup(self._problem(columns, rows[0], f"{batch}-prompt-{number}"), len(rows))
            for number, rows in enumerate(places)
        ]

    def _problem(self, columns: Any, place: int, uid: str) -> Problem:
        scored = columns["reward_model"][place] if "reward_model" in columns else {}
        gold = scored.get("ground_truth") if isinstance(scored, dict) else None
        public = {"data_source": columns["data_source"][place]} if "data_source" in columns else {}
        question = question_of(list(columns["raw_prompt"][place]), self._training.opening_system)
        return Problem(uid, question, public=public, secret={} if gold is None else {ANSWER: gold})

    async def _rows(self, groups: Sequence[PromptGroup], *, is_validation: bool) -> list[Row]:
        """The rows of all groups, in order."""

        def size(number: int) -> int:
            return groups[number].num_rows

        found: dict[int, list[Row]] = {}
        faults: dict[int, str] = {}
        for attempt in range(MAX_TRIES):
            missing = [number for number in range(len(groups)) if number not in found]
            for num_rows, numbers in groupby(sorted(missing, key=size), key=size):
                run = self._run(num_rows if is_validation else None)
                for number, rows in (await self._grown(run, groups, list(numbers), attempt)).items():
                    if isinstance(rows, str):
                        faults[number] = rows
                    else:
                        found[number] = rows
        if len(found) < len(groups):
            number = next(number for number in range(len(groups)) if number not in found)
            raise RamifyError(
                f"{len(groups) - len(found)} of {len(groups)} prompts gave no tree in {MAX_TRIES} tries; "
                f"{groups[number].problem.uid}: {faults[number]}"
            )
        return [row for number in range(len(groups)) for row in found[number]]

    async def _grown(
        self, run: Run, groups: Sequence[PromptGroup], numbers: Sequence[int], attempt: int
    ) -> dict[int, list[Row] | str]:
        """Number of a group -> its rows, or why there are none."""
        first, made = self._num_trees, dict[int, list[Row] | str]()
        reasons = (AGAIN,) if attempt else ()
        self._num_trees += len(numbers)

        async def seedlings() -> AsyncIterator[Seedling]:
            for place, number in enumerate(numbers):
                problem = groups[number].problem
                uid = problem.uid if not attempt else f"{problem.uid}-try-{attempt}"
                yield Seedling(first + place, replace(problem, uid=uid))

        def observe(event: Event) -> None:
            if isinstance(event, TreeClosed):
                number = numbers[event.index - first]
                try:
                    rows = rows_for(run, event, groups[number].num_rows)
                    made[number] = [replace(row, reasons=(*row.reasons, *reasons)) for row in rows]
                except ExportError as error:
                    made[number] = str(error)

        await run.grow_each(seedlings(), [observe])
        return made

    def _run(self, num_chains: int | None) -> Run:
        """The run of training batches, or the one that validates by so many chains a question."""
        config = self._training
        if num_chains is not None:
            config = evaluation_config(config, validation_sampling(self.config, num_chains))
        key = to_toml(config)
        if key not in self._runs:
            self._runs[key] = _made(config, self._engine)
        return self._runs[key]

    def _proto(self, rows: Sequence[Row], *, is_validation: bool) -> Any:
        from verl import DataProto

        rollout = self.config.actor_rollout_ref.rollout
        batch = verl.batch(
            rows,
            pad_id=self._engine.codec.eos_id,
            credit_by="trainer" if is_validation else "tree",
            num_prompt=rollout.prompt_length,
            num_response=rollout.response_length,
        )
        columns = {verl.NUM_TURNS: batch.non_tensors[verl.NUM_TURNS], "ramify": batch.non_tensors["ramify"]}
        columns["multi_modal_inputs"] = [{} for _ in rows]
        return DataProto.from_single_dict(replace(batch, non_tensors=columns).single_dict())


def _engine(config: Any, client: Any) -> VerlEngine:
    rollout = config.actor_rollout_ref.rollout
    return VerlEngine(
        client,
        TokenizerJson(_folder(config.actor_rollout_ref.model)),
        server=rollout.name,
        context_length=rollout.get("max_model_len") or rollout.prompt_length + rollout.response_length,
        logprobs="raw" if rollout.name == "vllm" and rollout.get("logprobs_mode") == "raw_logprobs" else "scaled",
    )


def _folder(model: Any) -> Path:
    """The local folder of the tokenizer, which verl may have to copy or to download."""
    named = model.get("tokenizer_path") or model.path
    if Path(named).is_dir():
        return Path(named)
    from verl.utils.fs import copy_to_local

    if Path(local := copy_to_local(named)).is_dir():
        return Path(local)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(named, allow_patterns=["*.json", "*.jinja", "*.model"]))


def _made(config: RunConfig, engine: VerlEngine) -> Run:
    engines = {name: build_engine(each) for name, each in config.engines.items()}
    return Run(prepare(config, task=task_of(config), engine=engine, engines=engines, problems=()))


async def _itself(made: T) -> T:
    return made


def _either(main: Coroutine[Any, Any, T]) -> Any:
    """The result of `main`, or inside an event loop a future of it; it runs on the background loop either way."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_in_background(main)
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(main, background_loop()))
