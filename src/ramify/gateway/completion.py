"""Completion: a finished tree as OpenAI's answer: its choices, what it used, and why there is no answer.

The answer that the vote chose comes first, whole, as its model said it, calls included. Behind it come the best of the
other different answers, then the rest. The usage is that of the whole tree, of all roles.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ramify.core.branch import turns_of
from ramify.core.ledger import Spend
from ramify.core.tree import Tree
from ramify.formats.messages import text_of, tool_calls
from ramify.gateway.api_error import ApiError, bad_request
from ramify.gateway.request_run import GrownTree
from ramify.runner.answers import Answering, Answers

CUT: Final = frozenset({"length", "context_full", "budget", "deadline"})
"""Stop words of answers that a limit cut."""
FILTERED: Final = "content_filter"
PIECE_CHARS: Final = 256
"""Characters of the text in one chunk of a stream."""
OF_REQUEST: Final = frozenset({"http_400", "http_413", "http_422", "context_full"})
"""Faults that the request caused."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to a request."""

    model: str
    choices: Sequence[Mapping[str, Any]]
    usage: Mapping[str, Any]
    ramify: Mapping[str, Any]
    """What only this gateway tells: the tree, its votes, and what each role used."""
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def as_dict(self) -> dict[str, Any]:
        choices = [{"index": number, "logprobs": None, **choice} for number, choice in enumerate(self.choices)]
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage, "ramify": self.ramify}

    def chunks(self, *, with_usage: bool) -> Iterator[dict[str, Any]]:
        """The answer in the chunks of a stream."""
        head = self._head("chat.completion.chunk")
        for number, choice in enumerate(self.choices):
            for delta in _deltas(choice["message"]):
                yield {**head, "choices": [_chunk(number, delta)]}
            yield {**head, "choices": [_chunk(number, {}, choice["finish_reason"])]}
        if with_usage:
            yield {**head, "choices": [], "usage": self.usage, "ramify": self.ramify}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def completion(grown: GrownTree, answering: Answering, *, model: str, n: int, is_sample: bool) -> Completion:
    """The answer in a finished tree, with at most `n` choices. Raises `ApiError` if there is none."""
    tree = grown.tree
    answers = answering.of(tree)
    nodes = [leaf for leaf in tree.leaves() if _is_said(tree, leaf)] if is_sample else _ranked(tree, answers)
    if not nodes:
        raise why_none(grown)
    choices = [_choice(tree, node, answers, answering) for node in nodes[:n]]
    return Completion(model, choices, usage(grown.spent), _told(grown, answers))


def usage(spent: Mapping[str, Spend]) -> dict[str, Any]:
    """What the roles of a tree used together, in OpenAI's words."""
    total = Spend()
    for spend in spent.values():
        total.add(spend)
    prompt = total.prefill_cached + total.prefill_uncached
    return {
        "prompt_tokens": prompt,
        "completion_tokens": total.decode,
        "total_tokens": prompt + total.decode,
        "prompt_tokens_details": {"cached_tokens": total.prefill_cached},
    }


# -- choices ----------------------------------------------------------------------------------------------------------


def _ranked(tree: Tree, answers: Answers) -> list[int]:
    """Nodes of the answers: the chosen one, the best of each other answer, then all others; a tree in which no answer
    was read gives the leaves that say something."""
    if answers.node is None:
        return [leaf for leaf in tree.leaves() if _is_said(tree, leaf)]
    others = [solution for solution in answers.ranked if answers.node not in solution.nodes]
    first = [answers.node, *(solution.nodes[0] for solution in others)]
    rest = [node for solution in answers.ranked for node in solution.nodes if node not in first]
    return [*first, *rest]


def _choice(tree: Tree, node: int, answers: Answers, answering: Answering) -> dict[str, Any]:
    message = _message(tree, node)
    if message is None:
        message = {"role": "assistant", "content": _text(tree, node, answers, answering)}
    return {"message": message, "finish_reason": _finish_reason(tree, node, message)}


def _message(tree: Tree, node: int) -> Mapping[str, Any] | None:
    """The model's own message at a node, as it came; None = its engine has no messages."""
    pieces = tree.branch(node).pieces
    found = next((p.segment.message for p in reversed(pieces) if p.segment.is_sampled and p.segment.message), None)
    return None if found is None else dict(found)


def _is_said(tree: Tree, node: int) -> bool:
    """Whether something was said at a node, be it an empty message."""
    return _message(tree, node) is not None or bool(turns_of(tree.branch(node).said)[-1].strip())


def _text(tree: Tree, node: int, answers: Answers, answering: Answering) -> str:
    """The answer at a node as the format reads it, or the last words."""
    branch = tree.branch(node)
    chosen = answers.answer if node == answers.node else None
    found = answers.text_at(node) or chosen or answering.read(branch.said)
    if found is not None:
        return found
    return turns_of(branch.said)[-1].removesuffix(branch.codec.decode([branch.codec.eos_id]))


def _finish_reason(tree: Tree, node: int, message: Mapping[str, Any]) -> str:
    if tool_calls(message):
        return "tool_calls"
    if tree.stop(node) in CUT:
        return "length"
    finishes = [segment.finish for segment in tree.segments(node) if segment.finish is not None]
    return FILTERED if finishes and finishes[-1].matched == FILTERED else "stop"


def _told(grown: GrownTree, answers: Answers) -> dict[str, Any]:
    solution = next((each for each in answers.ranked if answers.node in each.nodes), None)
    return {
        "run": str(grown.folder),
        "tree": grown.index,
        "candidates": answers.num_candidates,
        "votes": None if solution is None else solution.num_votes,
        "score": None if solution is None else solution.score,
        "spent": {role: _nonzero(spend) for role, spend in grown.spent.items()},
    }


def _nonzero(spend: Spend) -> dict[str, int]:
    return {name: value for name, value in spend.as_dict().items() if value}


# -- chunks -----------------------------------------------------------------------------------------------------------


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A message in parts: its fields, its text in pieces, and its calls."""
    others = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
    yield {"role": "assistant", "content": "", **others}
    text = text_of({"content": message.get("content")})
    for start in range(0, len(text), PIECE_CHARS):
        yield {"content": text[start : start + PIECE_CHARS]}
    for number, call in enumerate(tool_calls(message)):
        yield {"tool_calls": [{"index": number, **call}]}


def _chunk(number: int, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": number, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


# -- why there is none ------------------------------------------------------------------------------------------------


def why_none(grown: GrownTree) -> ApiError:
    """Why a tree has no answer."""
    stops = {grown.tree.stop(node) for node in grown.tree.leaves()}
    fault = grown.fault
    if fault is not None:
        return _of_fault(fault.kind, fault.said)
    if grown.reason != "done":
        return ApiError(500, f"the search ended by a fault: {grown.reason}", code="search_failed")
    if "context_full" in stops:
        return bad_request("the conversation is too long for the model", "messages", code="context_length_exceeded")
    if "deadline" in stops:
        return ApiError(504, "the time of the request was over before there was an answer", code="deadline")
    if "budget" in stops or not stops:
        return bad_request("the budget was spent before there was an answer; allow more", "ramify.budget")
    return ApiError(502, "the model gave no answer", code="no_answer")


def _of_fault(kind: str, said: str) -> ApiError:
    """The error for a request at which the endpoint failed, with its own words."""
    if kind == "context_full":
        return bad_request(said, "messages", code="context_length_exceeded")
    if kind in OF_REQUEST:
        return bad_request(said, code=kind)
    if kind in ("busy", "http_429"):
        return ApiError(429, said, code="endpoint_busy", retry_after_s=10.0)
    if kind in ("timeout", "engine_hang"):
        return ApiError(504, said, code=kind)
    return ApiError(502, said, code=kind)
