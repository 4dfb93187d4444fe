"""verifiers and prime-rl: `traces.jsonl` (verifiers v1, checked with 0.4.0).

A line is an episode; each of its traces is a graph of messages, whose leaves are its branches. A line may also be a
bare trace. Traces of one group, task and agent become one tree, which keeps the branches. Text is preferred to token
ids, because the file has no text for single tokens; means over a message's tokens are its measures.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from ramify.core.command import Score
from ramify.core.segment import FREE, Usage
from ramify.view.readers.chat_messages import SampledMessage, SampleMessages, question_of, text_of
from ramify.view.readers.foreign_run import ForeignRun
from ramify.view.readers.opening import Opening
from ramify.view.readers.plain_files import Table, damaged, inner, json_lines, listed, number, table
from ramify.view.readers.shared_tree import SampleEnd, SharedTree, SharedTrees, problem_of
from ramify.view.readers.verifiers_results import stop_of

MEASURES: Final[Mapping[str, str]] = {
    "logprobs": "mean_logprob",
    "advantages": "advantage",
    "entropies": "entropy",
    "reference_logprobs": "mean_reference_logprob",
    "trainer_logprobs": "mean_trainer_logprob",
}
"""List over the sampled tokens of a message -> the measure that is its mean."""
MAX_TOKEN: Final = 2**31


def is_mine(start: Opening) -> bool:
    if start.kind in ("torn", "empty"):
        return start.name == "traces.jsonl"
    return start.kind == "lines" and (start.has("traces task") or start.has("nodes task rewards"))


def read(files: Sequence[Path]) -> ForeignRun:
    trees = SharedTrees()
    skipped: list[str] = []
    for path in files:
        for place, row in json_lines(path, skipped):
            for trace in listed(place, "traces", row.get("traces")) or [row]:
                _lay(trees, place, table(place, "a trace", trace), row)
    return ForeignRun("verifiers traces", trees.grown(), {"skipped": skipped} if skipped else {})


def _lay(trees: SharedTrees, place: str, trace: Table, episode: Table) -> None:
    """Add one trace. An episode that failed before its first trace counts as a trace without messages."""
    nodes = [table(place, "a node", node) for node in listed(place, "nodes", trace.get("nodes"))]
    calls = [call for call in listed(place, "calls", trace.get("calls")) if isinstance(inner(call, "node"), int)]
    call_of = {call["node"]: call for call in calls}
    sample = SampleMessages(place)
    for i, node in enumerate(nodes):
        after = node.get("parent")
        if after is not None and not (type(after) is int and 0 <= after < i):
            raise damaged(place, f"the parent of node {i}", after, "the number of an earlier node")
        sampled = _sampled(node, call_of.get(i), episode) if node.get("sampled") is True else None
        sample.add(node.get("message"), sampled, after=after, tokens=_tokens(place, node))
    last = len(nodes) - 1
    _tree_of(trees, place, trace, episode).lay(
        sample.messages,
        lambda leaf: _end(trace, inner(call_of.get(leaf), "finish_reason"), is_last=leaf >= last),
    )


def _tree_of(trees: SharedTrees, place: str, trace: Table, episode: Table) -> SharedTree:
    task = table(place, "task", trace.get("task"))
    data, step = task.get("data"), inner(episode, "run", "work", "step")
    named = (task.get("key"), task.get("hash"), inner(data, "idx"), inner(data, "id"), inner(data, "prompt"))
    uid = next((str(name) for name in named if name is not None), "task")
    agent, group = inner(trace, "agent", "name"), inner(episode, "group", "id")
    facts = {"task": task, "env": episode.get("env"), "group": group, "agent": agent, "step": step}
    return trees.tree(
        (str(step), str(group or uid), str(agent)),
        lambda: SharedTree(
            problem_of(uid, question_of(inner(data, "prompt")) or _first_user(trace)),
            facts={name: value for name, value in facts.items() if value is not None},
        ),
    )


def _sampled(node: Table, call: Any, episode: Table) -> SampledMessage:
    means = {MEASURES[name]: _mean(node.get(name)) for name in MEASURES}
    usage, policy = inner(call, "usage"), inner(episode, "run", "work", "policy")
    version = inner(policy, "start")
    ids = node.get("token_ids")
    return SampledMessage(
        measures={name: mean for name, mean in means.items() if mean is not None},
        usage=FREE if usage is None else _usage(usage),
        version=version if type(version) is int and version == inner(policy, "end") else None,
        notes={"num_tokens": len(ids)} if isinstance(ids, list) and ids else {},
    )


def _usage(usage: Any) -> Usage:
    billed, new, cached = (
        value if type(value := inner(usage, name)) is int and 0 <= value < MAX_TOKEN else 0
        for name in ("completion_tokens", "prompt_tokens", "cached_input_tokens")
    )
    return Usage(num_calls=1, num_billed=billed, num_prefilled=new, num_cached=cached)


def _tokens(place: str, node: Table) -> bytes:
    """What tells the token ids of a message from others."""
    ids = listed(place, "token_ids", node.get("token_ids"))
    return hashlib.blake2b(json.dumps(ids).encode(), digest_size=16).digest() if ids else b""


def _mean(values: Any) -> float | None:
    """The mean of a list of numbers; None = there is none."""
    known = [value for each in values if (value := number(each)) is not None] if isinstance(values, list) else []
    return fmean(known) if known and len(known) == len(values) else None


def _end(trace: Table, finish: Any, *, is_last: bool) -> SampleEnd:
    """How a branch ended. Only the last one ended by the trace's own stop condition; all share its reward."""
    condition = str(trace.get("stop_condition") or ("error" if trace.get("errors") else "")) if is_last else ""
    stop = stop_of(condition, is_truncated=finish == "length")
    notes = {name: trace[name] for name in ("id", "stop_condition", "metrics", "info", "errors") if trace.get(name)}
    rewards = trace.get("rewards")
    if not isinstance(rewards, dict) or not rewards:
        return SampleEnd(stop=stop, notes=notes)
    values = {name: _reward(reward) for name, reward in rewards.items()}
    parts = tuple((name, value) for name, value in values.items() if value is not None)
    total = sum(value for _, value in parts) if parts else None
    return SampleEnd(stop=stop, scores=(Score("reward", total, parts),), notes=notes)


def _reward(reward: Any) -> float | None:
    """Score times weight; None = scoring did not run."""
    score, weight = number(inner(reward, "score")), number(inner(reward, "weight"))
    return number(reward) if score is None else score * (1.0 if weight is None else weight)


def _first_user(trace: Table) -> str:
    messages = [inner(node, "message") for node in trace.get("nodes") or ()]
    return next((text_of(inner(message, "content")) for message in messages if inner(message, "role") == "user"), "")
