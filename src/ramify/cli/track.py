"""Track: `--track KIND` gives the metrics of every finished tree to a tracker, under the names of the rollout service.

A tree is one log. Its step is its number in the run, so a resumed run goes on with the steps that are missing. A
training logs its updates and evaluations. Trackers are opened when the first tree begins: the run folder is there then,
and no request is in flight. A tracker that fails ends no run.
"""

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ramify.cli.terminal import Terminal
from ramify.config.tracker_config import Kind, TrackerConfig
from ramify.core.errors import ConfigError, RamifyError
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import Tree
from ramify.rows.sample import Sample, SampleStatus
from ramify.runner.events import Event, TreeClosed, TreeOpened
from ramify.store.store import header_and_config
from ramify.trackers.trackers import Trackers, check_installed, tracker_of

PROJECT: Final = "ramify"
OWN: Final = ("metrics.jsonl", "wandb")
"""What trackers write in a run folder under a name of its own."""
LENGTHS: Final = "rollout/response_len/"
"""Metrics that count tokens."""


def tracked_kinds(options: argparse.Namespace) -> tuple[Kind, ...]:
    """The kinds of `--track`, each once. Raises `ConfigError` for a missing extra, and with `--ray`."""
    kinds: tuple[Kind, ...] = tuple(dict.fromkeys(options.track))
    if kinds and vars(options).get("ray") is not None:
        raise ConfigError(
            f"--track {kinds[0]}: the trees of --ray end in other processes, which report no metrics; leave out one of "
            "the two"
        )
    for kind in kinds:
        check_installed(kind)
    return kinds


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Where the metrics of a run go."""

    folder: Path
    """For the files of trackers."""
    name: str
    begun: float
    """When the run began, in seconds since 1970. A resumed run has the time of its first start."""
    group: str | None = None
    """What the run is a part of."""

    @classmethod
    def of_folder(cls, folder: Path) -> "TrackedRun":
        """The run of a run folder. Raises `StoreError` if it cannot be read."""
        return cls(folder, folder.name or PROJECT, header_and_config(folder)[0].created)

    @classmethod
    def of_part(cls, folder: Path, name: str, begun: float) -> "TrackedRun":
        """The part `name` of something that `folder` is for."""
        return cls(folder / name.replace("/", "-"), name, begun, group=_dated(folder.name, begun))

    def refuse_links(self) -> None:
        """Raise `ConfigError` if a tracker would write through a link that somebody put into the folder."""
        for path in (self.folder / name for name in OWN):
            if path.is_symlink():
                raise ConfigError(f"{path} is a link, through which nothing is written; remove it")

    def config(self, kind: Kind) -> TrackerConfig:
        """The tracker of one kind. A resumed run has the same names, and is joined by them."""
        label = _dated(self.name, self.begun)
        match kind:
            case "jsonl" | "tensorboard":
                return TrackerConfig(kind=kind, folder=str(self.folder))
            case "wandb":
                run_id = hashlib.sha256(f"{self.group} {self.name} {self.begun!r}".encode()).hexdigest()[:16]
                folder = str(self.folder)
                return TrackerConfig(
                    kind=kind, project=PROJECT, group=self.group, name=label, run_id=run_id, folder=folder
                )
            case "trackio":
                return TrackerConfig(kind=kind, project=PROJECT, group=self.group, name=label)

    def place(self, kind: Kind) -> str:
        """Where people find what a tracker keeps."""
        match kind:
            case "jsonl":
                return str(self.folder / "metrics.jsonl")
            case "tensorboard":
                return f"{self.folder} | look: tensorboard --logdir {self.folder}"
            case "wandb":
                return (
                    f"{self.folder / 'wandb'} | nothing is sent; send it: wandb sync {self.folder}/wandb/offline-run-*"
                )
            case "trackio":
                return f"project {PROJECT} | look: trackio show --project {PROJECT}"


def _dated(name: str, begun: float) -> str:
    """A name that no other run has, the same on every machine."""
    return f"{name} {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(begun))} UTC"


class RunTracker:
    """Logs the metrics of a run. Trees log themselves, where `observe` is an observer. Mutable."""

    def __init__(self, kinds: Sequence[Kind], run: Callable[[], TrackedRun], terminal: Terminal) -> None:
        """`run` is called at the first tree or log. Without kinds, nothing is logged."""
        self._kinds = kinds
        self._run = run
        self._terminal = terminal
        self._trackers = Trackers({}, warn=terminal.warn)
        self._is_open = False
        self.first = 0
        """The step of tree 0. An evaluation raises it for each further seed."""

    def observe(self, event: Event) -> None:
        """Take one event of the run."""
        if isinstance(event, TreeOpened):
            self._open()
        if self._kinds and isinstance(event, TreeClosed):
            from ramify.service.evaluate import ROLLOUT_STEP

            self.log(tree_metrics(event.index, event.tree), step_key=ROLLOUT_STEP, step=self.first + event.index)

    def log(self, metrics: Mapping[str, float], *, step_key: str, step: int) -> None:
        """Give metrics to every tracker."""
        self._open()
        self._trackers.log(metrics, step_key=step_key, step=step)

    def close(self) -> None:
        """Write what is not written yet."""
        self._trackers.close()

    def _open(self) -> None:
        """Open every tracker, once. One that cannot be opened is said, and left out."""
        if self._is_open:
            return
        self._is_open = True
        for kind in self._kinds:
            try:
                run = self._run()
                run.refuse_links()
                self._trackers.add(kind, tracker_of(run.config(kind)))
            except RamifyError as error:
                self._terminal.warn(f"--track {kind}: {error}; the run goes on without it")
            else:
                self._terminal.say(f"track {kind}: {run.place(kind)}")


@contextmanager
def tracked(kinds: Sequence[Kind], run: Callable[[], TrackedRun], terminal: Terminal) -> Iterator[RunTracker]:
    """A tracker of a run, closed at the end."""
    tracker = RunTracker(kinds, run, terminal)
    try:
        yield tracker
    finally:
        tracker.close()


def tree_metrics(index: int, tree: Tree) -> dict[str, float]:
    """The metrics of a finished tree, with the number `index`, as of a batch with one sample per leaf.

    The length of a response is left out if the engine gave text only: nobody knows its tokens.
    """
    from ramify.service.evaluate import rollout_metrics

    metrics = rollout_metrics([_sample(index, tree, leaf) for leaf in tree.leaves()])
    return {name: value for name, value in metrics.items() if tree.codec.is_exact or not name.startswith(LENGTHS)}


def _sample(index: int, tree: Tree, leaf: int) -> Sample:
    branch, stop = tree.branch(leaf), tree.stop(leaf) or ""
    sampled = branch.is_sampled
    return Sample(
        status=SampleStatus.TRUNCATED if STOP_WORDS[stop].is_truncated else SampleStatus.COMPLETED,
        group_index=index,
        tokens=branch.ids.tolist(),
        response_length=len(sampled) - int(sampled.argmax()) if sampled.any() else 0,
        reward=tree.reward(leaf),
        metadata={"ramify": {"stop": stop}},
    )
