"""Recorder: the observer that writes a run to its store. It comes first, so nothing is shown before it is written."""

from ramify.runner.events import CommandsAsked, Event, OutcomeTold, StepGrown, TreeClosed, TreeOpened
from ramify.store import recording
from ramify.store.store import Store


class Recorder:
    """Appends a record to `store` for every event that a replay needs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.last = -1
        """Number of the last record; -1 = there is none."""

    def observe(self, event: Event) -> None:
        """Raises `StoreError` when the store no longer takes records."""
        match event:
            case TreeOpened(index, tree, is_resumed) if not is_resumed:
                record = recording.opened(
                    index, tree.problem, prompt=tree.segments(0), seed=tree.seed, codec=tree.codec
                )
            case CommandsAsked(index, asked):
                record = recording.asked(index, asked.first_id, asked.commands)
            case StepGrown(index, command_id, number, step):
                record = recording.grew(index, command_id, number, step=step)
            case OutcomeTold(index, told):
                record = recording.ended(index, told.command_id, told.ending, num_steps=told.num_steps)
            case TreeClosed(index, tree, reason):
                spent = {role: spend.as_dict() for role, spend in event.spent.items()}
                record = recording.shut(index, reason, tree.num_leaves, spent=spent, candidates=tree.candidates)
            case _:
                return
        self.last = self._store.append(record)
