# pyright: reportMissingImports=false
# TRL and torch are not in the development environment: pip install 'ramify[train]'.
"""Loop: trains a Hugging Face policy on the trees of a run, by TRL. It goes on where it was stopped.

`out` gets TRL's checkpoints, `trees` (the rollout service and the last weights; with plans `trees-2`, … too), the log
and, at the end, `model`: a folder that any engine of model folders can run. Stopped or killed, the same call goes on
from the last checkpoint. On one thread, with a deterministic engine, it ends with the same weights.
"""

import math
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PrinterCallback, TrainerCallback, TrainerState
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging as hub_logging
from trl import GRPOConfig

from ramify.config.run_config import RunConfig
from ramify.config.service_config import EvalConfig, ServiceConfig
from ramify.core.errors import ConfigError, nearest
from ramify.experiments.pilot import Watch, unseen
from ramify.integrations.trl.rollouts import SERVICE
from ramify.integrations.trl.trainer import TreeGRPOTrainer
from ramify.train.log import LOG, TrainingLog
from ramify.train.planned import Advise, has_moved, make_plan, planned_paths, shaped

SAMPLED: Final = "completions/sampled_tokens"
"""Figure of the decode tokens of a batch."""
MODEL: Final = "model"
TREES: Final = "trees"
FIRST_SERVICE: Final = Path(TREES, SERVICE)
"""Folder, within a training's, of the service that grew its first trees."""
TOKENIZER_FILES: Final = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges.txt",
)  # fmt: skip
HELDOUT: Final = "heldout"
"""Name of the evaluation that is added where the run has none."""
ROWS: Final = 64
"""Most rows in a micro-batch."""
SMALL: Final = 50_000_000
"""Parameters of a policy that learns with a larger rate, and on one thread: its bits are then those of every run."""
SMALL_RATE: Final = 3e-4
"""Of `make train-demo`: held-out reward rose from .29 to .36 in 24 updates."""
RATE: Final = 1e-6
"""TRL's default."""

Figures = Mapping[str, float]
"""Of an update or an evaluation, under TRL's names and the service's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How a policy is trained, besides the run that grows its trees."""

    model: str
    """Folder of the policy, as Hugging Face writes it."""
    out: Path
    steps: int = 20
    """Updates, each on a batch of its own."""
    tokens: int | None = None
    """Ends before `steps`, with the update by which so many tokens were sampled."""
    trees: int = 24
    """Trees of a batch."""
    learning_rate: float | None = None
    """None = 3e-4 for a policy of less than 50 M parameters, else 1e-6."""
    eval_every: int = 5
    """Updates between evaluations on held-out problems; 0 = none."""
    save_every: int = 5
    """Updates between checkpoints."""
    pilot: int | None = None
    """Problems of the pilots that shape the trees; 0 = as many as a twentieth of the training's tokens pays for. None =
    the trees are those of the run's own strategy."""
    trl: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of TRL's `GRPOConfig`, by name; they have the last word."""

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        least_of = {"steps": 1, "tokens": 1, "trees": 1, "eval_every": 0, "save_every": 1, "pilot": 0}
        for name, least in least_of.items():
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ConfigError(f"{name} = {getattr(self, name)!r}: at least {least} is needed")
        if self.pilot == 1:
            raise ConfigError("pilot = 1: intervals are over problems, so at least 2 are needed")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate = {self.learning_rate!r}: a number above 0 is needed")
        if not (Path(self.model) / "config.json").is_file():
            raise ConfigError(f"model = {self.model!r} has no config.json: name the folder of a policy")


def train(
    run: RunConfig,
    config: TrainConfig,
    tell: Callable[[int, Figures], None] = lambda *_: None,
    *,
    advise: Advise = lambda *_: None,
    watch: Watch = unseen,
) -> Path:
    """Train, and return the folder of the trained policy.

    `run`: the task, the engine with its model, the strategy and the credit. With a `pilot`, the strategy says only how
    much a tree may cost. `tell` gets the number of updates so far and the figures of each update and evaluation,
    `advise` each plan, and `watch` shows the trees of pilots. Raises `ConfigError` and what growing raises.
    """
    hub_logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    run, log = _with_evaluation(run, config), TrainingLog(config.out / LOG)
    state = _state(config.out)
    log.go_back(None if state is None else state.global_step)
    if config.pilot is None:
        return _train(run, config, log, tell, trees=TREES)

    def plan(model: Path, step: int) -> None:
        size = {"run_tokens": config.tokens, "run_paths": config.steps * config.trees * planned_paths(run)}
        made = make_plan(run, model, log, step=step, num_problems=config.pilot or None, **size, watch=watch)
        advise(step, *made)

    if not log.plans:
        if state is not None:
            raise ConfigError(f"{config.out} was begun without plans: leave the plan out, or use another folder")
        plan(Path(config.model), 0)
    while True:
        number = len(log.plans)
        trees = TREES if number == 1 else f"{TREES}-{number}"
        model = _train(shaped(run, log), config, log, tell, trees=trees)
        step = log.lines[-1]["step"]
        if _is_last(step, config, log) or not has_moved(log):
            return model
        plan(model, step)


def _train(
    run: RunConfig, config: TrainConfig, log: TrainingLog, tell: Callable[[int, Figures], None], *, trees: str
) -> Path:
    """Train to the end, or until the policy has moved from its plan. Returns the folder of the policy then."""
    trainer = TreeGRPOTrainer(config.model, run, _arguments(run, config), out=config.out / trees, has_tables=False)
    if trainer.model.num_parameters() < SMALL:
        torch.set_num_threads(1)
        if config.learning_rate is None and "learning_rate" not in config.trl:
            trainer.args.learning_rate = SMALL_RATE
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_Logging(log, config, tell))
    try:
        _bring_to_end(trainer, config, log)
    finally:
        trainer.rollouts.close()
    return _saved(trainer.model, Path(config.model), config.out / MODEL)


def _bring_to_end(trainer: TreeGRPOTrainer, config: TrainConfig, log: TrainingLog) -> None:
    """Train what is missing, and evaluate the policy at the end. The trainer then has the last weights."""
    state, checkpoint = _state(config.out), _checkpoint(config.out)
    if state is not None and (_is_last(state.global_step, config, log) or has_moved(log)):
        trainer.model = type(trainer.model).from_pretrained(checkpoint)  # TRL would make one update more
        trainer.state = state
    else:
        if checkpoint is None and config.eval_every:
            trainer.evaluate()
        trainer.train(resume_from_checkpoint=checkpoint)
    if config.eval_every and log.evaluation(trainer.state.global_step) is None:
        trainer.evaluate()


def _checkpoint(folder: Path) -> str | None:
    """The last checkpoint of a training."""
    return get_last_checkpoint(str(folder)) if folder.is_dir() else None


def _state(folder: Path) -> TrainerState | None:
    """Of the last checkpoint."""
    checkpoint = _checkpoint(folder)
    return None if checkpoint is None else TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json")))


def _is_last(step: int, config: TrainConfig, log: TrainingLog) -> bool:
    return step >= config.steps or (config.tokens is not None and log.tokens >= config.tokens)


def _saved(policy: Any, began_as: Path, folder: Path) -> Path:
    """Write the policy to `folder`, with the tokenizer that it began with, byte for byte: transformers would write
    another one."""
    policy.save_pretrained(folder)
    for pattern in TOKENIZER_FILES:
        for file in began_as.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    return folder


def _with_evaluation(run: RunConfig, config: TrainConfig) -> RunConfig:
    """The run with held-out problems to answer, unless it has evaluations, or none is wanted."""
    service = run.service or ServiceConfig()
    if config.eval_every and not service.eval:
        service = replace(service, eval={HELDOUT: EvalConfig(prompts=100, repeats=4)})
    return replace(run, service=replace(service, batch_size=config.trees))


def _arguments(run: RunConfig, config: TrainConfig) -> Any:
    """TRL's arguments: one update a batch, by Adam. Raises `ConfigError` for those that TRL has not or refuses."""
    leaves = planned_paths(run)
    num_rows = config.trees * leaves
    num_micro = next(n for n in range(1, num_rows + 1) if num_rows % n == 0 and num_rows // n <= ROWS)
    settings = {
        "output_dir": str(config.out),
        "loss_type": "dr_grpo",
        "beta": 0.0,
        "temperature": run.actions["policy"].sampling.temperature,
        "max_steps": config.steps,
        "learning_rate": config.learning_rate or RATE,
        "adam_beta2": 0.99,
        "warmup_steps": 2,
        "lr_scheduler_type": "constant_with_warmup",
        "num_generations": leaves,
        "per_device_train_batch_size": num_rows // num_micro,
        "per_device_eval_batch_size": leaves,  # TRL checks it; evaluations are of the service
        "gradient_accumulation_steps": num_micro,
        "max_completion_length": run.growth.max_response_tokens,
        "seed": run.seed,
        "save_strategy": "steps",
        "save_steps": config.save_every,
        "save_total_limit": 2,
        "eval_strategy": "steps" if config.eval_every else "no",
        "eval_steps": config.eval_every or None,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": torch.cuda.is_available(),
        "gradient_checkpointing": torch.cuda.is_available(),
    }
    if unknown := sorted(set(config.trl) - set(GRPOConfig.__dataclass_fields__)):
        raise ConfigError(
            f"GRPOConfig has no argument {unknown[0]!r}; {nearest(unknown[0], GRPOConfig.__dataclass_fields__)}"
        )
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of names between TRL and transformers
            return GRPOConfig(**{**settings, **config.trl})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"GRPOConfig: {error}") from error


class _Logging(TrainerCallback):
    """Writes the figures to the log, and tells them. Ends the training at `config.tokens`, or when the policy has moved
    from its plan."""

    def __init__(self, log: TrainingLog, config: TrainConfig, tell: Callable[[int, Figures], None]) -> None:
        self._log = log
        self._config = config
        self._tell = tell
        self._began = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        figures = {name: float(value) for name, value in (logs or {}).items() if isinstance(value, int | float)}
        if "train_runtime" in figures:
            return
        tokens = self._log.tokens + int(figures.get(SAMPLED, 0))
        seconds = time.monotonic() - self._began
        self._log.append({"step": state.global_step, "tokens": tokens, "seconds": seconds, **figures})
        if _is_last(state.global_step, self._config, self._log) or has_moved(self._log):
            control.should_training_stop = control.should_save = True
        self._tell(state.global_step, figures)
