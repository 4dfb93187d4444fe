"""Data read: what a run takes from its data file, and who judges, as commands tell it before the first token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramify.cli.terminal import visible

if TYPE_CHECKING:
    from ramify.config.run_config import RunConfig


@dataclass(frozen=True, slots=True)
class DataRead:
    """The data file of a run, and the judges of its leaves."""

    config: "RunConfig"
    judges: tuple[str, ...]

    @classmethod
    def of(cls, config: "RunConfig") -> "DataRead":
        """Raises `ConfigError` for a task that cannot be built."""
        from ramify.runner.build import build_task

        task = build_task(config)
        try:
            return cls(config, tuple(judge.name for judge in task.judges))
        except (AttributeError, TypeError):  # boundary to a plug-in: the run says what is wrong with it
            return cls(config, ())

    def as_dict(self) -> dict[str, Any] | None:
        """None = the questions are not from a file."""
        data = self.config.data
        if data.path is None:
            return None
        return {
            "path": data.path,
            "problems": self.config.prompts,
            "question": data.question,
            "answer": data.answer,
            "secret": data.secret,
            "public": data.public,
            "judges": self.judges,
        }

    def lines(self, *, unjudged: str) -> Iterator[str]:
        """The mapping of the file, and a warning if nothing judges. `unjudged` says what that means."""
        data, task = self.config.data, self.config.task.name
        if data.path is not None:
            yield visible(data.told(self.config.prompts, self.judges))
        if self.judges:
            return
        remedy = "; name the column of the gold answer: --set data.answer=COLUMN" if data.path is not None else ""
        yield f"warning: the task {visible(task)!r} has no judge here, so {unjudged}{remedy}"
