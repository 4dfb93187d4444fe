"""Inspect: logs of evaluations, `.eval` (a zip of JSON) and `.json` (log version 2, checked with 0.3.100 and
0.3.285).

`header.json` describes the run (`_journal/start.json` does while it goes on), `samples/{id}_epoch_{epoch}.json` are the
samples. Epochs of one sample become one tree. Its messages are those of the sample's own conversation; the events, with
further calls of models, are counted and not shown.
"""

import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from ramify.core.command import Score
from ramify.view.readers import zip_members
from ramify.view.readers.chat_messages import SampledMessage, SampleMessages, question_of, text_of
from ramify.view.readers.foreign_run import ForeignRun
from ramify.view.readers.opening import Opening
from ramify.view.readers.plain_files import Table, inner, json_document, listed, number, table
from ramify.view.readers.shared_tree import SampleEnd, SharedTree, SharedTrees, problem_of

HEADERS: Final = ("header.json", "_journal/start.json")
LETTERS: Final[Mapping[Any, float]] = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partially correct, incorrect, no answer: the values that Inspect's own `value_to_float` gives them."""
LIMITS: Final[Mapping[Any, str]] = {
    "context": "context_full", "time": "deadline", "working": "deadline", "message": "turn_limit", "turn": "turn_limit",
    "token": "budget", "cost": "budget", "operator": "cancelled", "custom": "closed",
}  # fmt: skip
REASONS: Final[Mapping[Any, str]] = {"max_tokens": "length", "model_length": "context_full", "content_filter": "closed"}
ATTACHED: Final = "attachment://"


def is_mine(start: Opening) -> bool:
    if start.kind == "zip":
        return bool(start.names.intersection(HEADERS))
    return start.kind in ("lines", "document") and start.has("version status eval")


def read(files: Sequence[Path]) -> ForeignRun:
    trees = SharedTrees()
    facts: dict[str, Any] = {}
    for path in files:
        header, samples = _log(path)
        spec = table(str(path), "eval", header.get("eval"))
        facts = facts or {name: spec.get(name) for name in ("task", "model", "created", "dataset")}
        facts["status"] = header.get("status", "started")
        for place, sample in samples:
            key = (str(spec.get("eval_id") or path), repr(sample.get("id")))
            _lay(trees, key, place, sample)
    title = f"Inspect: {facts.get('task')}, {facts.get('model')}"
    return ForeignRun(title, trees.grown(), facts)


def _log(path: Path) -> tuple[Table, Iterator[tuple[str, Table]]]:
    """The header of a log, and its samples with their places."""
    if not zipfile.is_zipfile(path):
        log = table(str(path), "the log", json_document(path))
        samples = listed(str(path), "samples", log.get("samples"))
        return log, ((str(path), table(str(path), "a sample", sample)) for sample in samples)
    members = zip_members.members(path)
    name = next(name for name in HEADERS if name in members)
    return table(f"{path}!{name}", "the header", zip_members.member(path, members[name])), _samples(path, members)


def _samples(path: Path, members: Mapping[str, zipfile.ZipInfo]) -> Iterator[tuple[str, Table]]:
    for name, info in members.items():
        if name.startswith("samples/") and name.endswith(".json"):
            place = f"{path}!{name}"
            yield place, table(place, "the sample", zip_members.member(path, info))


def _lay(trees: SharedTrees, key: tuple[str, str], place: str, sample: Table) -> None:
    problem = problem_of(str(sample.get("id")), question_of(sample.get("input")))
    facts = {name: sample[name] for name in ("target", "choices", "metadata") if sample.get(name)}
    tree = trees.tree(key, lambda: SharedTree(problem, facts=facts))
    attached = sample.get("attachments")
    messages = SampleMessages(place)
    for raw in listed(place, "messages", sample.get("messages")):
        message = table(place, "a message", _resolved(raw, attached) if attached else raw)
        is_sampled = message.get("role") == "assistant" and message.get("source") != "input"
        messages.add(message, SampledMessage() if is_sampled else None, after=messages.last())
    end = _end(place, sample)
    tree.lay(messages.messages, lambda _: end)


def _resolved(value: Any, attached: Any) -> Any:
    """A message with its long texts, which stand beside it, put back."""
    match value:
        case str() if value.startswith(ATTACHED):
            return text_of(inner(attached, value.removeprefix(ATTACHED)) or value)
        case dict():
            return {name: _resolved(each, attached) for name, each in cast("Table", value).items()}
        case list():
            return [_resolved(each, attached) for each in cast("Sequence[Any]", value)]
        case _:
            return value


def _end(place: str, sample: Table) -> SampleEnd:
    """The last score counts as the reward on a tree, and Inspect's first scorer is its main one: turned round."""
    scores = table(place, "scores", sample.get("scores") or {})
    choices = inner(sample, "output", "choices")
    reason = inner(choices[0], "stop_reason") if choices and isinstance(choices, list) else None
    stop = REASONS.get(reason, "end_of_sequence") if isinstance(reason, str) else "end_of_sequence"
    limit = inner(sample, "limit", "type")
    if limit is not None:
        stop = LIMITS.get(str(limit), "closed")
    if sample.get("error"):
        stop = "engine_error"
    kinds = Counter(str(inner(event, "event")) for event in listed(place, "events", sample.get("events")))
    said = {name: sample[name] for name in ("epoch", "error", "limit", "model_usage", "total_time") if sample.get(name)}
    return SampleEnd(
        stop=stop,
        scores=tuple(_score(name, inner(score, "value")) for name, score in reversed(list(scores.items()))),
        notes={**said, "scores": dict(scores), "events": dict(kinds)},
    )


def _score(judge: str, value: Any) -> Score:
    if isinstance(value, dict):
        parts = tuple((str(name), known) for name, each in value.items() if (known := _worth(each)) is not None)
        return Score(judge, None, parts)
    return Score(judge, _worth(value))


def _worth(value: Any) -> float | None:
    return LETTERS.get(value) if isinstance(value, str) else number(value)
