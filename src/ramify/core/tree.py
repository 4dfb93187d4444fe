"""Tree: everything that grew from one problem, stored as an arena of integer node ids.

A node is one step: what one growth added. It is written once, complete, and does not change afterwards, with two
exceptions: `split` (the tail keeps its id), and what is said about the node (stop word by `close`, scores, notes). Only
the driver mutates a tree. Strategies, credits and views read it through its queries. Queries return nodes in canonical
order: breadth first, siblings in the order they were requested. Ids are not canonical.

Invariants, true by construction: a node's parent is older than the node or is the head of a split, so no node is its
own ancestor. A split moves no token: every branch keeps its ids, logprobs and masks, and every position on a branch
stays valid.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from ramify.core.arena import SegmentArena
from ramify.core.branch import Branch, Piece
from ramify.core.codec import Codec
from ramify.core.command import EDGES, ROLES, Candidate, Command, Edge, Fork, ForkRecord, Grow, Judge, Role, Score
from ramify.core.cut import settled
from ramify.core.errors import ContractError
from ramify.core.ledger import Spend
from ramify.core.notebook import html_of
from ramify.core.problem import Problem
from ramify.core.quick_init import quick_init
from ramify.core.seeds import aside_seed, child_seed, judge_seed
from ramify.core.segment import Floats_T, Ids_T, Segment, SegmentLabel
from ramify.core.stop import ROULETTE, STOP_WORDS, stop_word

NONE = -1
QUOTED = -1
"""Position of a fresh context: before every token."""
MAX_STEPS_BACK = 16
"""A growing node steps over so many siblings to its place before a sorted list of them is made."""
JUDGED = 1 << 20
"""Index of the first context in which a judge asks about a node. Judge contexts come after every requested child."""
ASIDE = 1 << 19
"""Index of the first context in which an environment's model is asked about a node."""
ROOT = 0
"""Number of the root, the node of the opening context."""
STOPS = tuple(STOP_WORDS)
ENDED_BY_COIN = STOPS.index(ROULETTE)


@quick_init
@dataclass(frozen=True, slots=True)
class Step:
    """The complete content of one node: what one growth adds."""

    segments: tuple[Segment, ...]
    """Sampled tokens, then the observation, if any. A fresh context begins with its prompt."""
    stop: str | None = None
    action: str = "policy"
    edge: Edge = "continues"
    role: Role = "policy"
    measures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named values of the whole step (`step_entropy_topk`, ...). An absent name was not computed."""
    scores: tuple[Score, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    asides: tuple["Step", ...] = ()
    """What the environment's model said in this step, such as a simulated user. Each becomes a node of its own, which
    quotes this one and is no part of the path."""

    def __post_init__(self) -> None:
        if self.stop is not None:
            stop_word(self.stop)

    @property
    def with_asides(self) -> tuple["Step", ...]:
        """This step, then its asides: everything that it billed."""
        return (self, *self.asides)


@quick_init
@dataclass(frozen=True, slots=True)
class Place:
    """Where a Grow begins; fixed when it is asked."""

    parent: int
    position: int
    """Token position on the parent's branch: its end."""
    index: int
    """Number of children already requested at that place."""
    seed: int
    decision_id: int


class Tree:
    """Everything that grew from one problem."""

    __slots__ = (
        "_action", "_actions", "_edge", "_end", "_first_child", "_fork", "_index", "_last_child", "_latest",
        "_measures", "_next", "_notes", "_num_segments", "_ordered", "_parent", "_planned", "_previous", "_quoted",
        "_requested", "_rewarded_by", "_role", "_scores", "_seed", "_segment", "_segments", "_stop", "candidates",
        "caveats", "codec", "codecs", "forks", "is_broken", "num_failed", "num_leaves", "pending", "problem", "seed",
    )  # fmt: skip

    def __init__(
        self,
        problem: Problem,
        codec: Codec,
        prompt: Sequence[Segment],
        *,
        seed: int,
        codecs: Mapping[str, Codec] | None = None,
    ) -> None:
        """`codecs`: None = every context uses the tree's own tokenizer."""
        self.problem = problem.for_agents()
        self.codec = codec
        """Tokenizer of everything that grows."""
        self.codecs: Mapping[str, Codec] = codecs or {}
        """Judge's action -> its tokenizer, where it is not `codec`. Such contexts belong to the judge: nothing grows
        there."""
        self.seed = seed
        self.forks: list[ForkRecord] = []
        """Fork records by decision id. Implicit decisions (one child) have no record."""
        self.pending: dict[int, Command] = {}
        """Commands in flight by id."""
        self.is_broken = False
        """Whether growth ended before the strategy was done."""
        self.caveats: tuple[str, ...] = ()
        """Why nothing about this tree is exact, whatever it shows."""
        self.candidates: tuple[Candidate, ...] = ()
        """Answers that a finished search found, with the scores they vote with. Empty = the strategy was no search."""
        self.num_leaves = 0
        self.num_failed = 0
        self._segments = SegmentArena()
        self._parent, self._index, self._requested, self._end, self._segment = (array("i") for _ in range(5))
        self._first_child, self._last_child, self._next, self._previous, self._fork = (array("i") for _ in range(5))
        self._edge, self._role, self._num_segments, self._action = array("B"), array("B"), array("h"), array("h")
        self._quoted = array("i")
        self._planned: list[int] = []
        self._stop = array("b")
        self._seed = array("Q")
        self._actions: list[str] = []
        self._measures: dict[str, array[float]] = {}
        self._scores: dict[int, tuple[Score, ...]] = {}
        self._rewarded_by: dict[int, str] = {}
        """Node -> the judge that scored it last when it ended."""
        self._notes: dict[int, dict[str, Any]] = {}
        self._latest: Branch | None = None
        """The branch made last: a command's place is looked at several times in a row."""
        self._ordered: dict[int, list[int]] = {}
        """Node -> its children in order, where they did not come in order."""
        self._append(Step(tuple(prompt)), Place(NONE, 0, 0, seed, NONE))

    # -- queries ------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._parent)

    def __repr__(self) -> str:
        return f"Tree({self.problem.uid!r}, {len(self)} nodes)"

    def _repr_html_(self) -> str | None:
        return html_of(self)

    def parent(self, node: int) -> int | None:
        parent = self._parent[self._known(node)]
        return None if parent == NONE else parent

    def children(self, node: int, *, edge: Edge = "continues") -> list[int]:
        """Children of `node` over one kind of edge, in order of request."""
        code = EDGES.index(edge)
        return [child for child in self._children(self._known(node)) if self._edge[child] == code]

    def policy_children(self, node: int) -> list[int]:
        """Children of role `policy` that continue `node`, in order of request."""
        return [child for child in self._children(self._known(node)) if self._is_policy(child)]

    def derived(self, node: int) -> list[int]:
        """Children that quote `node`: critiques, rewrites, grades."""
        return self.children(node, edge="quotes")

    def stems(self) -> list[int]:
        """Root branches (stems): the policy children of the root. Papers call them the trees of a prompt."""
        return self.policy_children(ROOT)

    def path(self, node: int) -> list[int]:
        """Nodes from the root to `node`, both included."""
        nodes = [self._known(node)]
        while (parent := self._parent[nodes[-1]]) != NONE:
            nodes.append(parent)
        return nodes[::-1]

    def subtree(self, node: int = ROOT) -> list[int]:
        """`node` and everything below it over both kinds of edge, in canonical order."""
        nodes = [self._known(node)]
        for current in nodes:
            nodes.extend(self._children(current))
        return nodes

    def leaves(self, node: int = ROOT) -> list[int]:
        """Ended policy paths below `node` in canonical order, without failed ones."""
        return [n for n in self.subtree(node) if self.is_leaf(n)]

    def expandable(self, node: int = ROOT) -> list[int]:
        """Policy nodes from which a new step may be sampled, in canonical order: neither the node nor anything above
        has ended."""
        if any(self._stop[n] != NONE for n in self.path(node)):
            return []
        nodes = [node]
        for current in nodes:
            nodes.extend(c for c in self._children(current) if self._stop[c] == NONE)
        return [n for n in nodes if self._is_policy(n)]

    def is_leaf(self, node: int) -> bool:
        """Whether `node` ends a policy path that counts: its stop word is not a failure, and it has no policy child."""
        stop = self._stop[node]
        if stop == NONE or not self._is_policy(node) or STOP_WORDS[STOPS[stop]].is_failure:
            return False
        return not any(self._is_policy(c) for c in self._children(node))

    def is_ended(self, node: int) -> bool:
        return self._stop[self._known(node)] != NONE

    def stop(self, node: int) -> str | None:
        code = self._stop[self._known(node)]
        return None if code == NONE else STOPS[code]

    def depth(self, node: int) -> int:
        """Number of edges from the root."""
        return len(self.path(node)) - 1

    def length(self, node: int) -> int:
        """Number of tokens on the branch that ends at `node`."""
        return self._end[self._known(node)]

    def num_prompt(self, node: int) -> int:
        """Number of tokens in the opening context of the branch of `node`."""
        first = self.context(node)[0]
        return sum(self._segments.length(i) for i in self._segment_range(first) if self._segments.origin(i) == 0)

    def edge(self, node: int) -> Edge:
        return EDGES[self._edge[node]]

    def role(self, node: int) -> Role:
        return ROLES[self._role[node]]

    def action(self, node: int) -> str:
        return self._actions[self._action[node]]

    def index(self, node: int) -> int:
        """Number of children already requested at the same place before this one."""
        return self._index[node]

    def node_seed(self, node: int) -> int:
        return self._seed[node]

    def num_requested(self, node: int) -> int:
        """Number of children ever requested at the end of `node`, including those in flight."""
        return self._requested[node]

    def fork(self, node: int) -> ForkRecord | None:
        """The decision that made `node`; None = an implicit decision with one child."""
        decision = self._fork[node]
        return None if decision == NONE else self.forks[decision]

    def segments(self, node: int) -> tuple[Segment, ...]:
        """Segments of `node`; their arrays are read-only views."""
        return tuple(self._segments.get(i) for i in self._segment_range(node))

    def labels(self, node: int) -> list[SegmentLabel]:
        """What the segments of `node` are, without their tokens."""
        return [self._segments.label(i) for i in self._segment_range(node)]

    def ids(self, node: int) -> Ids_T:
        """(T,) int32: the ids of `node`."""
        return self.tokens([node])[0]

    def logprobs(self, node: int) -> Floats_T:
        """(T,) float32: the logprobs of the tokens of `node`; NaN where nothing was sampled or the engine gave none."""
        return self.tokens([node])[1]

    def token_measure(self, node: int, name: str) -> Floats_T:
        """(T,) float32: a value of each token of `node`; NaN where it was not computed."""
        return self.tokens([node], name)[2]

    def tokens(self, nodes: Iterable[int], measure: str = "entropy") -> tuple[Ids_T, Floats_T, Floats_T]:
        """(T,) int32 and twice (T,) float32: ids, logprobs and a measure of the tokens of all `nodes`, in order: in one
        go, as rows need those of a path."""
        return self._segments.tokens(chain.from_iterable(map(self._segment_range, nodes)), measure)

    def num_sampled(self, node: int) -> int:
        """Number of sampled tokens of `node`."""
        return self._segments.num_sampled(self._segment_range(node))

    def versions(self, nodes: Iterable[int]) -> set[int]:
        """The policy versions that sampled tokens of `nodes`; empty = none, or the engine has no versions."""
        return self._segments.versions(chain.from_iterable(map(self._segment_range, nodes)))

    def num_billed(self, node: int) -> int:
        """Number of tokens that engines billed for `node`: on engines of messages, only they know it."""
        return sum(self._segments.usage(i).num_billed for i in self._segment_range(node))

    def sampled_logprobs(self, node: int) -> Floats_T | None:
        """(num_sampled,) logprobs of the sampled tokens of `node`, in order; None = a segment has none."""
        arena = self._segments
        parts = [arena.known_logprobs(i) for i in self._segment_range(node) if arena.is_sampled(i)]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return known[0] if len(known) == 1 else np.concatenate([np.empty(0, np.float32), *known])

    def content_key(self, *nodes: int) -> bytes:
        """The ids that the model sampled in `nodes`, as bytes. Two paths from one place with the same key said the
        same."""
        arena = self._segments
        segments = [i for node in nodes for i in self._segment_range(node) if arena.is_sampled(i)]
        return b"".join([arena.ids(i).tobytes() for i in segments])

    def num_tool_calls(self, node: int) -> int:
        """Number of tool calls on the branch of `node`. An action that named no tool does not count, even if it was
        answered."""
        calls = (self._segments.tool_call(i) for n in self.context(node) for i in self._segment_range(n))
        return sum(call is not None and call.tool != "" for call in calls)

    def measure(self, node: int, name: str) -> float | None:
        """A named value of the whole step; None = not computed."""
        column = self._measures.get(name)
        if column is None or node >= len(column) or column[node] != column[node]:
            return None
        return column[node]

    @property
    def measure_names(self) -> list[str]:
        """Names of the values that some step has as a whole."""
        return sorted(self._measures)

    def scores(self, node: int) -> tuple[Score, ...]:
        return self._scores.get(node, ())

    def reward(self, node: int) -> float | None:
        """Value of `reward_score`; None = there is no such score, or the judge gave no value."""
        score = self.reward_score(node)
        return None if score is None else score.value

    def reward_score(self, node: int) -> Score | None:
        """The score that counts as the reward of `node`: the last score by the judge that scored it last when it ended.
        What other judges say later does not count. If nobody scored the node when it ended: the last score of all.
        Scores given to a prune rule never count.

        None = no score counts, or random termination (a coin) ended the path: nobody knows what it would have been
        worth.
        """
        scores = [score for score in self._scores.get(node, ()) if not score.is_of_step]
        if not scores or self._stop[node] == ENDED_BY_COIN:
            return None
        judge = self._rewarded_by.get(node, scores[-1].judge)
        return next(score for score in reversed(scores) if score.judge == judge)

    def notes(self, node: int) -> Mapping[str, Any]:
        return self._notes.get(node, {})

    def branch(self, node: int, at: int | None = None) -> Branch:
        """The path to `node` since its last fresh context; with `at`, only its first `at` tokens."""
        branch = self._latest
        if branch is None or branch.node != node:
            pieces: list[Piece] = []
            for current in self.context(node):
                role = self.role(current)
                pieces.extend(Piece(current, self._segments.get(i), role) for i in self._segment_range(current))
            branch = self._latest = Branch(self.codec_of(node), node, tuple(pieces), self.role(node))
        return branch if at is None else _shortened(branch, at)

    def codec_of(self, node: int) -> Codec:
        """The tokenizer of the branch of `node`."""
        return self.codecs.get(self.action(node), self.codec) if self.codecs else self.codec

    def context(self, node: int) -> list[int]:
        """Nodes of the branch of `node`, starting at its last fresh context."""
        nodes = [self._known(node)]
        while self._edge[nodes[-1]] == 0 and self._parent[nodes[-1]] != NONE:
            nodes.append(self._parent[nodes[-1]])
        return nodes[::-1]

    def contexts(self, node: int) -> list[Branch]:
        """One branch for each fresh context on the way to `node`, the root's first: what a quoting prompt may cite."""
        branches = [self.branch(node)]
        while (above := self._parent[self.context(branches[-1].node)[0]]) != NONE:
            branches.append(self.branch(above))
        return branches[::-1]

    def spent(self) -> dict[str, Spend]:
        """What the tree's segments, calls and scores billed, by role: the ledger, computed again."""
        by_role: dict[str, Spend] = {}
        for node in range(len(self)):
            spend = by_role.setdefault(self.role(node), Spend())
            for i in self._segment_range(node):
                spend.bill(self._segments.usage(i))
                call = self._segments.tool_call(i)
                if call is not None and call.is_executed:
                    spend.tool_calls += 1
                    spend.tool_retries += call.num_retries
            if not self._is_split_tail(node):
                spend.turns += any(self._segments.is_sampled(i) for i in self._segment_range(node))
            spend.leaves += self.is_leaf(node)
            spend.failed_leaves += self._stop[node] != NONE and STOP_WORDS[STOPS[self._stop[node]]].is_failure
            spend.judge_calls += len(self._scores.get(node, ()))
        return by_role

    # -- growing (driver only) -------------------------------------------------------------------------------------

    def begin(
        self, command_id: int, command: Command, *, edge: Edge = "continues", words: Iterable[str] = ()
    ) -> Place | None:
        """Register a command as in flight. For a Grow, fix its place; this may split a node and record a fork.

        `words` are stop words that a fork position must not cut. Raises `ContractError` on an impossible command.
        """
        place = None
        if isinstance(command, Grow):
            self._refuse_other_codec(command)
            place = self._place(command, words) if edge == "continues" else self._quoted_place(command)
        self.pending[command_id] = command
        return place

    def add(self, step: Step, place: Place) -> int:
        """Append a node at `place` and return its id."""
        return self._append(step, place)

    def follow(self, node: int) -> Place:
        """The place of the next step of a chain: the only child of an implicit decision."""
        index = self._requested[node]
        self._requested[node] += 1
        position = self._end[node]
        return Place(node, position, index, child_seed(self._seed[node], position, index), NONE)

    def about(self, judge: Judge, number: int) -> Place:
        """The place of the `number`-th fresh context of a judge. Context i quotes the i-th node to judge; further
        contexts quote the last node. The context does not count as a requested child, so judging does not change what
        grows."""
        last = len(judge.nodes) - 1
        node = self._known(judge.nodes[min(number, last)])
        seed = judge_seed(self._seed[node], judge.judge, judge.attempt)
        if number > last:
            seed = child_seed(seed, QUOTED, number - last)
        return Place(node, QUOTED, JUDGED + judge.attempt, seed, NONE)

    def aside(self, node: int, number: int) -> Place:
        """The place of the `number`-th fresh context in which the environment's model was asked about `node`. It does
        not count as a requested child."""
        return Place(node, QUOTED, ASIDE + number, aside_seed(self._seed[self._known(node)], number), NONE)

    def end(self, command_id: int) -> None:
        """Remove an answered command from `pending`."""
        del self.pending[command_id]

    def close(self, node: int, reason: str, *, stop: str = "closed") -> None:
        """End the path at `node` with a stop word, unless it has ended already. Note the reason in both cases."""
        if self._stop[self._known(node)] == NONE:
            self._stop[node] = STOPS.index(stop)
            self.num_leaves += self.is_leaf(node)
        self.note(node, closed=reason)

    def score(self, node: int, score: Score) -> None:
        self._scores[self._known(node)] = (*self._scores.get(node, ()), score)

    def note(self, node: int, **notes: Any) -> None:
        self._notes.setdefault(node, {}).update(notes)

    def split(self, node: int, position: int) -> int:
        """Divide `node` at token `position` of its branch. A new head takes its place; the tail keeps its id.

        Returns the head. The head gets the fork record, share and seed; the tail keeps children, stop word, scores and
        notes.
        """
        start = self._start(node)
        if not start < position < self._end[node]:
            raise ContractError(f"cannot split node {node} at {position}: its tokens are {start}..{self._end[node]}")
        segment, offset = self._segment_at(node, position)
        if offset and self._segments.get(segment).message is not None:
            raise ContractError(
                f"position {position} on node {node} is inside a chat message, which goes on only whole"
            )
        head, self._latest = len(self), None
        self._append_row(self._parent[node], self._index[node], self._seed[node], self._fork[node])
        self._edge[head], self._role[head], self._action[head] = self._edge[node], self._role[node], self._action[node]
        self._end[head] = position
        self._requested[head] = 1
        self._divide_segments(node, head, position - start)
        self._replace_child(node, head)
        self._parent[node], self._index[node], self._fork[node], self._edge[node] = head, 0, NONE, 0
        self._first_child[head] = self._last_child[head] = node
        self._next[node] = self._previous[node] = NONE
        return head

    def trim(self) -> None:
        """Give back spare memory; called when the tree is finished."""
        self._segments.trim()
        self._ordered.clear()
        self._latest = None

    # -- internals --------------------------------------------------------------------------------------------------

    def _known(self, node: int) -> int:
        if not 0 <= node < len(self._parent):
            raise ContractError(f"no node {node!r}: this tree has nodes 0 to {len(self._parent) - 1}")
        return node

    def _is_policy(self, node: int) -> bool:
        return self._role[node] == 0 and self._edge[node] == 0

    def _children(self, node: int) -> Iterator[int]:
        child = self._first_child[node]
        while child != NONE:
            yield child
            child = self._next[child]

    def _segment_range(self, node: int) -> range:
        first = self._segment[node]
        return range(first, first + self._num_segments[node])

    def _start(self, node: int) -> int:
        """Position on the branch where the node's own tokens begin."""
        return self._end[node] - sum(self._segments.length(i) for i in self._segment_range(node))

    def _is_split_tail(self, node: int) -> bool:
        """Whether `node` continues a run that its parent began: one turn of the policy on two nodes."""
        own, parent = self._segment_range(node), self._parent[node]
        if parent == NONE or self._edge[node] == 1 or not own or not self._segment_range(parent):
            return False
        has_begun = any(self._segments.is_sampled(i) for i in self._segment_range(parent))
        return has_begun and self._seed[node] == self._seed[parent]

    def _place(self, grow: Grow, words: Iterable[str]) -> Place:
        """At the end of the node's branch, or at a position on it."""
        parent = self._parent_at(grow, tuple(words))
        if self.is_ended(parent):
            raise ContractError(f"cannot grow from node {parent}: it ended with {self.stop(parent)!r}")
        return self._next_place(grow, parent, position=self._end[parent], requested=self._requested)

    def _refuse_other_codec(self, grow: Grow) -> None:
        """Raise an error unless the growth uses the tree's own codec: no branch and no row may mix two tokenizers."""
        if grow.action in self.codecs or self.codec_of(self._known(grow.node)) is not self.codec:
            raise ContractError(
                f"{grow!r}: action {grow.action!r}, or node {grow.node}, is a judge's with a tokenizer of its own; "
                "nothing grows by it or from it"
            )

    def _quoted_place(self, grow: Grow) -> Place:
        """In a fresh context under the node. The node may have ended, because the context continues none of its
        tokens."""
        if grow.at is not None:
            raise ContractError(f"{grow!r}: an action that quotes has no token position")
        return self._next_place(grow, self._known(grow.node), position=QUOTED, requested=self._quoted)

    def _next_place(self, grow: Grow, parent: int, *, position: int, requested: "array[int]") -> Place:
        """The place of the next child of one kind; `requested` counts them."""
        decision = self._decision(grow.fork, parent, is_first=not requested[parent])
        index = requested[parent]
        requested[parent] += 1
        return Place(parent, position, index, child_seed(self._seed[parent], position, index), decision)

    def _parent_at(self, grow: Grow, words: tuple[str, ...]) -> int:
        """The node at whose end the growth begins. If `at` falls inside a sampled run, a split makes that node."""
        node = self._known(grow.node)
        at = self.num_prompt(node) if grow.at == 0 else grow.at
        if at is None or at == self._end[node]:
            return node
        if not 0 < at < self._end[node]:
            raise ContractError(f"fork position {at} is not on the branch of node {node}, which has {self._end[node]}")
        owner = next(n for n in self.context(node) if at <= self._end[n])
        if at == self._end[owner]:
            return self._fit_for_fork(owner, grow)
        segment, _ = self._segment_at(owner, at)
        if not self._segments.is_sampled(segment):
            raise ContractError(
                f"fork position {at} on node {node}: allowed are the start of the branch, the end of a `given` and "
                "positions inside or at the start of a sampled run"
            )
        at = self._settled(owner, at, words)
        if at <= self._start(owner):
            return self._parent_at(replace(grow, node=self._parent[owner], at=at), words)
        return self.split(owner, at)

    def _fit_for_fork(self, owner: int, grow: Grow) -> int:
        """An inner node boundary is a valid place to fork, unless its run ended there without an observation."""
        if self.is_ended(owner):
            raise ContractError(f"fork position {grow.at} is behind the end of node {owner} ({self.stop(owner)!r})")
        return owner

    def _segment_at(self, node: int, position: int) -> tuple[int, int]:
        """The segment of `node` that holds the token at `position`, and the token's offset in it."""
        offset = position - self._start(node)
        for i in self._segment_range(node):
            if offset < self._segments.length(i):
                return i, offset
            offset -= self._segments.length(i)
        raise AssertionError("position lies inside the node")

    def _settled(self, owner: int, at: int, words: tuple[str, ...]) -> int:
        """`at`, moved left until it cuts no stop word and no character. Its run may span several nodes."""
        tail = owner
        while (only := self.children(tail)) and self._continues_run(tail, only[0]):
            tail = only[0]
        branch = self.branch(tail)
        start = self._run_start(branch, at)
        end = next((i for i in range(at, len(branch)) if not branch.is_sampled[i]), len(branch))
        tokens = [self.codec.token_bytes(int(i)) for i in branch.ids[start:end]]
        return start + settled(tokens, at - start, words)

    def _continues_run(self, node: int, child: int) -> bool:
        before, after = self._segment_range(node), self._segment_range(child)
        if not before or not after:
            return False
        return self._segments.is_sampled(before[-1]) and self._segments.is_sampled(after[0])

    @staticmethod
    def _run_start(branch: Branch, at: int) -> int:
        start = at
        while start > 0 and branch.is_sampled[start - 1]:
            start -= 1
        return start

    def _decision(self, fork: Fork | int | None, parent: int, *, is_first: bool) -> int:
        """Decision id of a Grow's fork. A Fork is recorded when it is first seen."""
        if fork is None and is_first:
            return NONE
        if isinstance(fork, int):
            if not 0 <= fork < len(self.forks) or self.forks[fork].node != parent:
                raise ContractError(f"decision {fork} does not fork node {parent}")
            if self._planned[fork] < 1:
                raise ContractError(
                    f"decision {fork} planned {self.forks[fork].num_siblings} children and has them all"
                )
            self._planned[fork] -= 1
            return fork
        return self._record(fork or Fork(1, "again"), parent, is_first=is_first)

    def _record(self, fork: Fork, parent: int, *, is_first: bool) -> int:
        """Record a decision before its first child is asked for; returns its id."""
        record = ForkRecord(
            decision_id=len(self.forks),
            node=parent,
            position=self._end[parent],
            rule=fork.rule,
            num_siblings=fork.num_siblings,
            shares=fork.shares or (1.0 / fork.num_siblings,) * fork.num_siblings,
            is_post_hoc=not is_first,
            probability=fork.probability,
            score=fork.score,
            select_prob=fork.select_prob,
        )
        self.forks.append(record)
        self._planned.append(fork.num_siblings - 1)
        return record.decision_id

    def _append(self, step: Step, place: Place) -> int:
        node = len(self)
        self._append_row(place.parent, place.index, place.seed, place.decision_id)
        self._edge[node], self._role[node] = EDGES.index(step.edge), ROLES.index(step.role)
        if step.action not in self._actions:
            self._actions.append(step.action)
        self._action[node] = self._actions.index(step.action)
        self._segment[node] = len(self._segments)
        self._num_segments[node] = len(step.segments)
        fresh = place.parent == NONE or step.edge == "quotes"
        self._end[node] = (0 if fresh else self._end[place.parent]) + sum(len(s) for s in step.segments)
        for segment in step.segments:
            self._segments.add(segment)
        if place.parent != NONE:
            # A path may be closed before a growth below it is delivered. The path then ends further down.
            self.num_leaves -= self._is_policy(node) and self.is_leaf(place.parent)
            self._link(node, place.parent)
        self._describe(node, step)
        return node

    def _append_row(self, parent: int, index: int, seed: int, fork: int) -> None:
        self._parent.append(parent)
        self._index.append(index)
        self._seed.append(seed)
        self._fork.append(fork)
        for column in (self._requested, self._quoted, self._end, self._segment, self._num_segments):
            column.append(0)
        for column in (self._edge, self._role, self._action):
            column.append(0)
        for column in (self._first_child, self._last_child, self._next, self._previous, self._stop):
            column.append(NONE)

    def _describe(self, node: int, step: Step) -> None:
        """Stop word, measures, scores and notes of a new node."""
        for name, value in step.measures.items():
            column = self._measures.setdefault(name, array("d"))
            column.extend([float("nan")] * (node - len(column)))
            column.append(value)
        if step.scores:
            self._scores[node] = step.scores
            if not step.scores[-1].is_of_step:
                self._rewarded_by[node] = step.scores[-1].judge
        if step.notes:
            self._notes[node] = dict(step.notes)
        if step.stop is not None:
            self._stop[node] = STOPS.index(step.stop)
            self.num_leaves += self.is_leaf(node)
            self.num_failed += STOP_WORDS[step.stop].is_failure

    def _link(self, node: int, parent: int) -> None:
        """Insert `node` among its siblings by order of request."""
        before = self._before(node, parent)
        after = self._first_child[parent] if before == NONE else self._next[before]
        self._previous[node], self._next[node] = before, after
        if before == NONE:
            self._first_child[parent] = node
        else:
            self._next[before] = node
        if after == NONE:
            self._last_child[parent] = node
        else:
            self._previous[after] = node

    def _before(self, node: int, parent: int) -> int:
        """The sibling after which `node` comes. It is nearly always one of the last. Where it is not, a sorted list of
        the siblings is kept, so that many siblings in any order take no quadratic time."""
        order = self._order(node)
        before = self._last_child[parent]
        ordered = self._ordered.get(parent)
        if ordered is None:
            for _ in range(MAX_STEPS_BACK):
                if before == NONE or self._order(before) <= order:
                    return before
                before = self._previous[before]
            ordered = self._ordered[parent] = list(self._children(parent))
        place = bisect_right(ordered, order, key=self._order)
        ordered.insert(place, node)
        return ordered[place - 1] if place else NONE

    def _order(self, node: int) -> tuple[int, int]:
        """Sort key among siblings: continuations first, each kind by order of request."""
        return self._edge[node], self._index[node]

    def _replace_child(self, old: int, new: int) -> None:
        """Put `new` in the place of `old` among its siblings."""
        parent, before, after = self._parent[old], self._previous[old], self._next[old]
        self._ordered.pop(parent, None)
        self._previous[new], self._next[new] = before, after
        if before == NONE:
            self._first_child[parent] = new
        else:
            self._next[before] = new
        if after == NONE:
            self._last_child[parent] = new
        else:
            self._previous[after] = new

    def _divide_segments(self, node: int, head: int, offset: int) -> None:
        """Give the first `offset` tokens of `node` to `head`. The segments of `head` are appended to the arena."""
        self._segment[head] = len(self._segments)
        for i in self._segment_range(node):
            length = self._segments.length(i)
            if offset < length:
                if offset:
                    self._segments.cut(i, offset)
                self._num_segments[node] -= i - self._segment[node]
                self._segment[node] = i
                break
            self._segments.move(i)
            offset -= length
        self._num_segments[head] = len(self._segments) - self._segment[head]


def _shortened(branch: Branch, at: int) -> Branch:
    """The first `at` tokens of `branch`."""
    pieces: list[Piece] = []
    for piece in branch.pieces:
        if at <= 0:
            break
        segment = piece.segment
        if at < len(segment):
            segment = replace(
                segment,
                ids=segment.ids[:at],
                logprobs=None if segment.logprobs is None else segment.logprobs[:at],
                measures={name: values[:at] for name, values in segment.measures.items()},
                finish=None,
            )
        pieces.append(Piece(piece.node, segment, piece.role))
        at -= len(segment)
    return Branch(branch.codec, pieces[-1].node if pieces else branch.node, tuple(pieces), branch.role)
