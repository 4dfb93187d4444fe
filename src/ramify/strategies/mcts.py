"""MCTS: a tree search over segments that goes down to the most promising place, grows there and backs a value up.

From the root down: where fewer children have been sampled than the visits allow, one more is grown; else the search
goes on to the child of the highest score (`mcts_node.Counting`). A new segment is given a value, by a judge or by the
outcome of a probe grown to its end, and the value is backed up to the root. What is in flight counts as visits, so any
number of requests may be; a choice that leads to where all is on its way takes the next best place (`blocked`). A path
that ended is not gone into again: it would say the same. A growth that failed and a segment without a value leave no
trace but the sample they cost.

Children of the last level grow to their end. When the samples are used up and no path has ended, the most visited one
is grown to its end, so that there is an answer.

Draws nothing, but for `prior.noise`: then one gamma for each new child of the root, in their order, at ask.

Sources: PUCT of AlphaZero (arXiv 1712.01815) and MuZero (1911.08265), progressive widening (Couetoux 2011), WU-UCT
(1810.11755), treequest src/treequest/algos/standard_mcts.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from ramify.core.command import Candidate, Command, Failed, Fork, Grow, Grown, Judge, Judged, Outcome, Tokens, Until
from ramify.core.stop import ANSWERED, STOP_WORDS
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import NONE, ROOT, Tree
from ramify.strategies.entropy import LOGPROBS
from ramify.strategies.flight import InFlight
from ramify.strategies.mcts_config import MCTSConfig
from ramify.strategies.mcts_node import CLOSED, Node
from ramify.strategies.posteriors import Variates
from ramify.strategies.priors import arrive, mean_logprob, merge, mix_noise
from ramify.strategies.steering import REWARD, allowed_value, steering_value
from ramify.strategies.ucb import reduced_first_play

NO_SCORES: Final[list[float]] = []


@dataclass(slots=True, eq=False)
class Expansion:
    """Children of one place that are still wanted, by action. Mutated by the search alone."""

    node: Node
    missing: dict[str, int]


@dataclass(slots=True, eq=False)
class Visit:
    """One reservation: a segment on its way, or a value on its way. Mutated by the search alone."""

    reserved: Node
    """Where the path ends that counts it as in flight."""
    expansion: Expansion | None = None
    action: str = ""
    child: Node | None = None
    """What was grown."""
    evidence: float = 0.0
    end: int = NONE
    """Last node of the probe."""


Asked = list[tuple[Command, Visit]]


class MCTS:
    """Choose, grow, value, back up."""

    Config = MCTSConfig
    is_order_free = False
    unpredictable = "where segments grow depends on the values of others"

    def __init__(self, config: MCTSConfig, rng: Variates) -> None:
        self.config = config
        self.vote: Vote = "first" if config.answer == "visited" else config.answer
        self.root = Node(ROOT)
        self._counting = config.choice
        self._until: Until = "step" if config.segment_tokens is None else Tokens(config.segment_tokens)
        self._rng = rng
        self._lowest, self._highest = config.value_range or (math.inf, -math.inf)
        self._scale = 1.0 if config.value_range is None else self._highest - self._lowest
        """Width of the range of q: a bonus is that share of it."""
        self._in_flight: InFlight[Visit] = InFlight()
        self._early: dict[Node, list[float]] = {}
        """Evidence of those that said what a child says that is being valued."""
        self._waiting: Asked = []
        self._current: Expansion | None = None
        """What is being filled, where a surplus is asked for."""
        self._gammas: list[float] = []
        """Noise of the root's children."""
        self._ends: list[tuple[int, float]] = []
        """Whole answers, with their values."""
        self._scores: list[float] = []
        """Of the children that were chosen among last."""
        self._visits_needed: list[float] = []
        """By number of children: visits from which on there may be one more."""
        self._num_visits = 0
        """Reserved now."""
        self._num_used = 0
        """Of the n samples."""
        self._has_finished = False
        self._is_spent = False
        self._is_over = False

    @property
    def measures(self) -> frozenset[str]:
        return frozenset({LOGPROBS}) if self.config.prior.evidence == "logprob" else frozenset()

    def ask(self, tree: Tree) -> Sequence[Command]:
        if self._is_over:
            return []
        asked, self._waiting = self._waiting, []
        if self.config.refill == "at_once" or not (asked or self._in_flight):
            self._fill(asked)
        if not (asked or self._in_flight):
            self._finish(asked)
            self._is_over = not asked
        return self._in_flight.book([command for command, _ in asked], [visit for _, visit in asked])

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        visit = self._in_flight.take(outcome)
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._is_spent = True
        if isinstance(outcome, Grown):
            self._grown(tree, visit, outcome)
        elif isinstance(outcome, Judged):
            node = _end(visit)
            self._value(tree, visit, allowed_value(outcome.scores[0], node, oracle=self.config.oracle))
        else:
            self._drop(visit)

    def is_done(self, tree: Tree) -> bool:
        return self._is_over and not self._in_flight

    def phase(self, tree: Tree) -> Phase:
        if not self._num_used:
            return Phase("build")
        return Phase("collection" if self.is_done(tree) else "expansion", self._num_used)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Every whole answer in the order they were valued, but for the one on the most visited path: it is first."""
        found = [Candidate(tip, value) for tip, value in self._ends]
        if self.config.answer == "visited" and (first := self._most_visited()) is not None:
            found.sort(key=lambda candidate: candidate.node != first)
        return found

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _fill(self, asked: Asked) -> None:
        """Ask for segments and values while more may be in flight."""
        if self.config.prior.noise:
            self._mix_noise()
        while not self._is_spent and self._num_used < self.config.n and self._num_visits < self.config.in_flight:
            if self._current is not None:
                self._expand_again(self._current, asked)
                continue
            node = self._selected()
            if node is None or not self._visited(node, asked):
                return

    def _visited(self, node: Node, asked: Asked) -> bool:
        """Ask for what a node that was chosen lacks; returns whether there was room."""
        if node.parent is not None and node.value is None:
            visit = Visit(node, child=node)
            self._num_visits += 1
            self._counting.reserve(node)
            asked.append((self._valuing(visit), visit))
            return True
        if node.is_ended and self.config.endings == "revisit" and node.value is not None:
            self._num_used += 1
            self._counting.visit(node, node.value)
            return True
        number = self._num_wanted(node)
        if self._num_visits and self._num_visits + number > self.config.in_flight:
            return False
        self._expand(node, asked, number=number)
        return True

    def _selected(self) -> Node | None:
        """Where to grow, or whose value to ask for; None = nowhere until something comes back."""
        node, has_room = self._descended()
        barred: list[Node] = []
        while not has_room and node is not self.root and self.config.blocked != "wait":
            self._counting.bar(node)
            barred.append(node)
            node, has_room = self._descended()
        for each in barred:
            self._counting.unbar(each)
        if not has_room and self.config.blocked == "widen":
            return next(filter(self._may_widen, (*barred, self.root)), None)
        return node if has_room else None

    def _may_widen(self, node: Node) -> bool:
        """Whether a node may be given a child more than its visits allow."""
        widening, is_open = self.config.widening, not (node.is_ended or node.is_closed)
        is_known = node.value is not None or node.parent is None
        return is_known and is_open and widening.kind == "progressive" and node.num_coming < widening.most

    def _descended(self) -> tuple[Node, bool]:
        """Where the choice ends, and whether there is something to ask for there or all of it is on its way.

        It ends at a child without a value, where one more child may be had, and where nothing else is left.
        """
        node, table = self.root, self._visits_needed
        is_once = self.config.widening.kind == "once"
        while True:
            if node.value is None and node.parent is not None:
                return node, not node.in_flight
            coming = node.num_coming
            while coming >= len(table):
                table.append(self.config.visits_needed(len(table)))
            if node.visits + node.in_flight >= table[coming] or (node.is_ended and self.config.endings == "revisit"):
                return node, True
            if node.num_live > node.num_barred:
                node = node.children[self._best(node)]
            elif node.num_pending or node.num_barred or node.is_closed:
                return node, False
            elif not is_once and coming < self.config.widening.most:
                return node, True
            else:
                self._counting.close(node)
                node = self.root

    def _best(self, node: Node) -> int:
        """Place of the child of the highest score; the first of several."""
        if len(node.children) == 1:
            self._scores = NO_SCORES
            return 0
        factor = self._counting.factor(node) * self._scale
        if node.num_unvisited:
            scores = self._scores = self._first_scores(node, factor)
            best = max(scores)
            if self.config.first_play.tie == "prior":
                same = [place for place, score in enumerate(scores) if score == best]
                return max(same, key=lambda place: node.children[place].weight)
            return scores.index(best)
        scores = self._scores = [q + factor * share for q, share in zip(node.qs, node.shares, strict=True)]
        return scores.index(max(scores))

    def _first_scores(self, node: Node, factor: float) -> list[float]:
        """Of children of which some have no value."""
        instead = self._first_q(node)
        return [
            (instead if not child.visits and q != CLOSED and not self._has_lost(child) else q)
            + (factor * share if factor else 0.0)
            for child, q, share in zip(node.children, node.qs, node.shares, strict=True)
        ]

    def _first_q(self, node: Node) -> float:
        rule = self.config.first_play
        match rule.kind:
            case "first":
                return math.inf
            case "value":
                return rule.value
            case "parent":
                visited = sum(child.weight for child in node.children if child.visits) / node.sum_weights
                return reduced_first_play(node.q, visited, reduction=rule.reduction * self._scale)
            case _:
                assert_never(rule.kind)

    def _has_lost(self, child: Node) -> bool:
        return self._counting.pending == "virtual_loss" and child.in_flight > 0

    def _mix_noise(self) -> None:
        """Draw for the children of the root that came since the last time."""
        new = len(self.root.children) - len(self._gammas)
        if new:
            self._gammas += [self._rng.standard_gamma(self.config.prior.noise_alpha) for _ in range(new)]
            mix_noise(self.root, self._gammas, share=self.config.prior.noise)
            self._counting.reweigh(self.root)

    # -- growing ------------------------------------------------------------------------------------------------------

    def _num_wanted(self, node: Node) -> int:
        """Children that an expansion of `node` asks for."""
        config = self.config
        if config.widening.kind == "once":
            return min(config.children_at_once - node.num_coming, config.n - self._num_used)
        room = config.widening.most - node.num_coming
        return min(config.width, room, config.n - self._num_used)

    def _expand(self, node: Node, asked: Asked, *, number: int) -> None:
        """Ask for so many children of `node`."""
        actions = self._actions(node, number)
        expansion = None
        if self.config.surplus != "none":
            expansion = self._current = Expansion(node, {action: actions.count(action) for action in actions})
        fork = Fork(number, self.config.widening.kind) if number > 1 else None
        why = self._why(node)
        for action in actions:
            asked.append(self._growth(Visit(node, expansion, action), fork=fork, why=why))
            why = ()

    def _expand_again(self, expansion: Expansion, asked: Asked) -> None:
        """Ask for one more child of an expansion that is not complete, by the first action that lacks some."""
        action = next(action for action, number in expansion.missing.items() if number)
        asked.append(self._growth(Visit(expansion.node, expansion, action)))

    def _growth(
        self, visit: Visit, *, until: Until | None = None, fork: Fork | None = None, why: tuple[Candidate, ...] = ()
    ) -> tuple[Command, Visit]:
        """Reserve a child of where the visit begins, and the command that grows it."""
        node = visit.reserved
        node.num_pending += 1
        node.num_coming += 1
        self._num_used += 1
        self._num_visits += 1
        self._counting.reserve(node)
        if until is None:
            until = "end" if node.depth + 1 >= self.config.max_depth else self._until
        return Grow(node.tip, until=until, action=visit.action, fork=fork, why=why), visit

    def _actions(self, node: Node, number: int) -> Sequence[str]:
        """Of the children of an expansion, in order."""
        actions = self.config.actions
        if len(actions) == 1:
            return actions * number
        if self.config.order == "by_action" and self.config.widening.kind == "once":
            return [action for action in actions for _ in range(self.config.width)][-number:]
        first = node.num_coming
        return [actions[(first + i) % len(actions)] for i in range(number)]

    def _grown(self, tree: Tree, visit: Visit, grown: Grown) -> None:
        """A segment came, or the probe that values one."""
        if visit.child is not None:
            visit.end = grown.tip
            self._seek(tree, visit, steering_value(tree, grown.tip, self.config.outcome, oracle=self.config.oracle))
        elif not self._is_surplus(visit) and not self._is_twin(tree, visit, grown):
            self._born(tree, visit, grown)
        else:
            self._drop(visit)

    def _born(self, tree: Tree, visit: Visit, grown: Grown) -> None:
        """A new segment: value it now, or put it below its parent to be valued later."""
        parent, tip, is_ended = visit.reserved, grown.tip, tree.is_ended(grown.tip)
        child = visit.child = Node(tip, parent, is_ended=is_ended)
        if is_ended and not STOP_WORDS[tree.stop(tip) or ""].is_trainable:
            return self._drop(visit)
        if self.config.duplicates == "merge":
            parent.remember(child, tree.length(tip))
        value = steering_value(tree, tip, self._judge_of(child), oracle=self.config.oracle)
        if value is None and self.config.valued == "when_selected":
            self._num_visits -= 1
            self._counting.release(parent)
            return self._add(tree, visit, child)
        return self._seek(tree, visit, value)

    def _is_surplus(self, visit: Visit) -> bool:
        """Whether an expansion was complete before this child of it came; counts it if not."""
        expansion = visit.expansion
        if expansion is None:
            return False
        if not expansion.missing[visit.action]:
            return self.config.surplus == "discard"
        expansion.missing[visit.action] -= 1
        if expansion is self._current and not any(expansion.missing.values()):
            self._current = None
        return False

    def _is_twin(self, tree: Tree, visit: Visit, grown: Grown) -> bool:
        """Whether a sibling says the same; its prior grows then."""
        parent = visit.reserved
        if self.config.prior.evidence == "logprob":
            visit.evidence = mean_logprob(tree, grown.nodes)
        if self.config.duplicates == "keep":
            return False
        twins = parent.by_length.get(tree.length(grown.tip)) if parent.by_length else None
        twin = _twin(tree, grown.tip, twins, parent.tip) if twins else None
        if twin is None:
            return False
        parent.num_coming += 1
        if twin.place < 0:
            self._early.setdefault(twin, []).append(visit.evidence)
        else:
            merge(parent, twin, visit.evidence, prior=self.config.prior)
            self._counting.reweigh(parent)
        return True

    # -- valuing ------------------------------------------------------------------------------------------------------

    def _judge_of(self, node: Node) -> str:
        return self.config.outcome if node.is_ended else self.config.judge

    def _valuing(self, visit: Visit) -> Command:
        """The command that brings the value of a segment."""
        child = visit.child
        assert child is not None
        if visit.end != NONE:
            return Judge((visit.end,), self.config.outcome)
        if self.config.value == "rollout" and not child.is_ended:
            return Grow(child.tip, until="end", action=self.config.rollout_action, fork=Fork(1, "rollout"))
        return Judge((child.tip,), self._judge_of(child))

    def _seek(self, tree: Tree, visit: Visit, value: float | None) -> None:
        """Take a value that is there already, or ask for one."""
        assert visit.child is not None
        if value is None and not (self._by_judge(visit) and self._last_judge(visit) == REWARD):
            self._waiting.append((self._valuing(visit), visit))
        else:
            self._value(tree, visit, value)

    def _by_judge(self, visit: Visit) -> bool:
        """Whether a judge is asked next, not a probe."""
        assert visit.child is not None
        return visit.end != NONE or visit.child.is_ended or self.config.value == "judge"

    def _last_judge(self, visit: Visit) -> str:
        assert visit.child is not None
        return self.config.outcome if visit.end != NONE else self._judge_of(visit.child)

    def _value(self, tree: Tree, visit: Visit, value: float | None) -> None:
        """A segment's value came: back it up. None and what is no number are no value."""
        child = visit.child
        assert child is not None
        if value is None or not math.isfinite(value):
            self._drop(visit)
            return
        if tree.stop(_end(visit)) in ANSWERED:
            self._ends.append((_end(visit), value))
        child.value = value
        if self.config.prior.evidence == "score":
            visit.evidence = value
        if (child.is_ended and self.config.endings == "close") or child.depth >= self.config.max_depth:
            self._counting.close(child)
        self._num_visits -= 1
        if child is not visit.reserved:
            child.in_flight = 1
            self._add(tree, visit, child)
        self._counting.arrive(child, value)
        if child.is_ended and tree.stop(child.tip) in ANSWERED:
            _mark(child)
        if self.config.value_range is None:
            self._see(child)

    def _see(self, node: Node) -> None:
        """Widen the range of q by what has changed."""
        for above in node.path():
            self._lowest, self._highest = min(self._lowest, above.q), max(self._highest, above.q)
        self._scale = self._highest - self._lowest or 1.0

    def _add(self, tree: Tree, visit: Visit, child: Node) -> None:
        """Put a new child below its parent."""
        parent, prior = visit.reserved, self.config.prior
        parent.num_pending -= 1
        has_changed = prior.evidence != "none" and arrive(parent, child, visit.evidence, prior=prior)
        self._counting.add(parent, child)
        for evidence in self._early.pop(child, ()):
            has_changed |= prior.evidence != "none"
            merge(parent, child, evidence, prior=prior)
        if has_changed:
            self._counting.reweigh(parent)

    def _drop(self, visit: Visit) -> None:
        """A growth failed, or a segment has no value: it is never chosen."""
        self._num_visits -= 1
        self._counting.release(visit.reserved)
        if visit.child is visit.reserved:
            self._counting.close(visit.reserved)
        else:
            visit.reserved.num_pending -= 1
            visit.reserved.num_coming -= 1
            if visit.child is not None:
                visit.reserved.forget(visit.child)
                self._early.pop(visit.child, None)

    # -- answering ----------------------------------------------------------------------------------------------------

    def _finish(self, asked: Asked) -> None:
        """Grow the most visited path to its end if none has ended."""
        if self._ends or self._has_finished or self._is_spent or self.config.finish == "leave":
            return
        self._has_finished = True
        node = self.root
        while live := [child for child in node.children if not child.is_ended]:
            node = max(live, key=lambda child: (child.visits, child.q))
        asked.append(self._growth(Visit(node, action=self.config.actions[0]), until="end"))

    def _most_visited(self) -> int | None:
        """End of the path that goes, of children with an answer below, to the most visited."""
        node = self.root
        while answering := [child for child in node.children if child.has_answer]:
            node = max(answering, key=lambda child: (child.visits, child.q))
        return None if node is self.root else node.tip

    def _why(self, node: Node) -> tuple[Candidate, ...]:
        """The child that was chosen last on the way to `node` and the best beside it, for the viewer."""
        scores, parent = self._scores, node.parent
        if parent is None or len(scores) != len(parent.children):
            return ()
        chosen = Candidate(node.tip, scores[node.place], _terms(node))
        scores[node.place] = CLOSED
        second = max(scores)
        if not math.isfinite(second):
            return (chosen,)
        other = parent.children[scores.index(second)]
        return chosen, Candidate(other.tip, second, _terms(other))


def _terms(node: Node) -> tuple[tuple[str, float], ...]:
    return ("q", node.q), ("visits", float(node.visits))


def _end(visit: Visit) -> int:
    """Node whose value was sought."""
    assert visit.child is not None
    return visit.child.tip if visit.end == NONE else visit.end


def _twin(tree: Tree, tip: int, siblings: Sequence[Node], above: int) -> Node | None:
    """The sibling that says what was said up to `tip`."""
    said = _said(tree, tip, above)
    for sibling in siblings:
        if sibling.said is None:
            sibling.said = _said(tree, sibling.tip, above)
        if sibling.said == said:
            return sibling
    return None


def _said(tree: Tree, tip: int, above: int) -> bytes:
    """What the model said from behind `above` to `tip`."""
    nodes = [tip]
    while (node := tree.parent(nodes[-1])) is not None and node != above:
        nodes.append(node)
    return tree.content_key(*reversed(nodes))


def _mark(node: Node) -> None:
    """An answer stands at the end of `node`: its path has one."""
    for above in node.path():
        if above.has_answer:
            return
        above.has_answer = True
