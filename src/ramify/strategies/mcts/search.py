"""MCTS: a tree search over segments. It descends to the most promising place, grows there and backs a value up.

A segment grows where the descent from the root ends (`descent.py`). A judge, or the outcome of a probe grown to its
end, gives its value, and the value is backed up to the root. By default requests in flight count as visits, so any
number of them may run. If a choice leads to a place where everything is in flight, the search takes the next best place
(`blocked`). By default it never enters an ended path again, because that would give the same value. A failed growth and
a segment without a value leave no trace except the sample they cost.

Children of the last level grow to their end. If the samples are used up and no path has ended, the most visited path
grows to its end, so that there is an answer.

Draws nothing without `prior.noise`; with it, one gamma for each new child of the root, in their order, at ask.

Sources: PUCT of AlphaZero (arXiv 1712.01815) and MuZero (1911.08265), progressive widening (Couetoux 2011), WU-UCT
(1810.11755), treequest src/treequest/algos/standard_mcts.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ramify.core.command import (
    Candidate,
    Command,
    Failed,
    Fork,
    Grow,
    Grown,
    Judge,
    Judged,
    Option,
    Outcome,
    Tokens,
    Until,
)
from ramify.core.stop import ANSWERED, STOP_WORDS
from ramify.core.strategy import Phase, Vote
from ramify.core.tree import NONE, ROOT, Tree
from ramify.strategies.mcts.config import MCTSConfig
from ramify.strategies.mcts.descent import Descent
from ramify.strategies.mcts.expansion import MCTSExpansion, actions_of, num_wanted
from ramify.strategies.mcts.node import MCTSNode
from ramify.strategies.mcts.priors import Noise, arrive, mean_logprob
from ramify.strategies.mcts.twins import Twins
from ramify.strategies.parts.entropy import LOGPROBS
from ramify.strategies.parts.flight import InFlight
from ramify.strategies.parts.posteriors import Variates
from ramify.strategies.parts.spent import is_spent
from ramify.strategies.parts.steering import REWARD, allowed_value, steering_value


@dataclass(slots=True, eq=False)
class Visit:
    """One reservation: for a new segment and then its value, or for the value of a child. Only the search mutates
    it."""

    at: MCTSNode
    """The chosen place. It and all nodes above count the visit as in flight."""
    expansion: MCTSExpansion | None = None
    action: str = ""
    child: MCTSNode | None = None
    """The grown child; the place itself if it is a child without a value."""
    evidence: float = 0.0
    end: int = NONE
    """Last node of the probe."""

    @property
    def valued(self) -> int:
        """Node of the tree whose value the segment gets: the probe's end, or its own."""
        assert self.child is not None
        return self.child.tip if self.end == NONE else self.end


class MCTS:
    """Choose a place, grow a segment, value it, back the value up."""

    Config = MCTSConfig
    is_order_free = False
    post_hoc_reason = "where segments grow depends on the values of others"

    def __init__(self, config: MCTSConfig, rng: Variates) -> None:
        self.config = config
        self.vote: Vote = "first" if config.answer == "visited" else config.answer
        self.root = MCTSNode(ROOT)
        self._counting = config.choice
        self._descent = Descent(config, self.root)
        self._noise = Noise(config.prior, rng)
        self._twins = Twins(config.prior, config.choice)
        self._until: Until = "step" if config.segment_tokens is None else Tokens(config.segment_tokens)
        self._in_flight: InFlight[Visit] = InFlight()
        self._waiting: list[tuple[Command, Visit]] = []
        self._expansion: MCTSExpansion | None = None
        """The latest expansion, if surplus children may be asked for."""
        self._answers: list[Candidate] = []
        self._num_used = 0
        """Samples used, out of n."""
        self._has_finished = False
        self._is_spent = False
        self._is_over = False

    @property
    def measures(self) -> frozenset[str]:
        return frozenset({LOGPROBS}) if self.config.prior.evidence == "logprob" else frozenset()

    def ask(self, tree: Tree) -> Sequence[Command]:
        if self._is_over:
            return []
        if self.config.refill == "at_once" or not (self._waiting or self._in_flight):
            self._fill()
        if not (self._waiting or self._in_flight):
            self._finish()
            self._is_over = not self._waiting
        asked, self._waiting = self._waiting, []
        return self._in_flight.book([command for command, _ in asked], [visit for _, visit in asked])

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        visit = self._in_flight.take(outcome)
        if isinstance(outcome, Failed) and outcome.reason == "budget":
            self._is_spent = True
        if isinstance(outcome, Grown):
            self._is_spent |= is_spent(tree, outcome.tip)
            self._grown(tree, visit, outcome)
        elif isinstance(outcome, Judged):
            self._value(tree, visit, allowed_value(outcome.scores[0], visit.valued, oracle=self.config.oracle))
        else:
            self._drop(visit)

    def is_done(self, tree: Tree) -> bool:
        return self._is_over and not self._in_flight

    def phase(self, tree: Tree) -> Phase:
        if not self._num_used:
            return Phase("build")
        return Phase("collection" if self.is_done(tree) else "expansion", self._num_used, self.config.n)

    def candidates(self, tree: Tree) -> Sequence[Candidate]:
        """Every whole answer in the order valued. With `answer = "visited"` the one on the most visited path comes
        first."""
        if self.config.answer != "visited":
            return list(self._answers)
        first = self.root.most_visited(lambda child: child.has_answer)
        return sorted(self._answers, key=lambda answer: answer.node != first.tip)

    # -- asking -------------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Ask for segments and values while more may be in flight."""
        if self._noise.mix(self.root):
            self._counting.reweigh(self.root)
        while not self._is_spent and self._num_used < self.config.n and self.root.in_flight < self.config.in_flight:
            if self._expansion is not None and not self._expansion.is_complete:
                self._grow(Visit(self._expansion.node, self._expansion, self._expansion.next_action))
                continue
            node = self._descent.place()
            if node is None or not self._go_on(node):
                return

    def _go_on(self, node: MCTSNode) -> bool:
        """Ask for what the chosen place lacks; returns whether there was room."""
        if node.parent is not None and node.value is None:
            visit = Visit(node, child=node)
            self._counting.reserve(node)
            self._ask_value(visit, self._next_judge(visit))
            return True
        if node.is_ended and self.config.endings == "revisit" and node.value is not None:
            self._num_used += 1
            self._counting.visit(node, node.value)
            return True
        number = num_wanted(self.config, node, left=self.config.n - self._num_used)
        if self.root.in_flight and self.root.in_flight + number > self.config.in_flight:
            return False
        self._expand(node, number)
        return True

    def _expand(self, node: MCTSNode, number: int) -> None:
        """Ask for `number` children of `node`."""
        actions = actions_of(self.config, node, number)
        if self.config.surplus != "none":
            self._expansion = MCTSExpansion(node, {action: actions.count(action) for action in actions})
        fork = Fork(number, self.config.widening.kind) if number > 1 else None
        why = self._descent.why(node)
        for action in actions:
            self._grow(Visit(node, self._expansion, action), fork=fork, why=why)
            why = ()

    def _grow(
        self, visit: Visit, *, until: Until | None = None, fork: Fork | None = None, why: tuple[Option, ...] = ()
    ) -> None:
        """Ask for one child at the visit's place."""
        node = visit.at
        node.num_pending += 1
        node.num_coming += 1
        self._num_used += 1
        self._counting.reserve(node)
        if until is None:
            until = "end" if node.depth + 1 >= self.config.max_depth else self._until
        self._waiting.append((Grow(node.tip, until=until, action=visit.action, fork=fork, why=why), visit))

    def _finish(self) -> None:
        """Grow the most visited path to its end if no path has ended."""
        if self._answers or self._has_finished or self._is_spent or self.config.finish == "leave":
            return
        self._has_finished = True
        node = self.root.most_visited(lambda child: not child.is_ended)
        self._grow(Visit(node, action=self.config.actions[0]), until="end")

    # -- growing ------------------------------------------------------------------------------------------------------

    def _grown(self, tree: Tree, visit: Visit, grown: Grown) -> None:
        """A segment has grown, or the probe that values one."""
        if visit.child is not None:
            visit.end = grown.tip
            self._seek(tree, visit, steering_value(tree, grown.tip, self.config.outcome, oracle=self.config.oracle))
        elif self._is_surplus(visit):
            self._drop(visit)
        else:
            self._take(tree, visit, grown)

    def _is_surplus(self, visit: Visit) -> bool:
        """Whether a segment arrived after its expansion was complete and is to be thrown away."""
        is_late = visit.expansion is not None and not visit.expansion.take(visit.action)
        return is_late and self.config.surplus == "discard"

    def _take(self, tree: Tree, visit: Visit, grown: Grown) -> None:
        """Make a segment a child, unless it repeats a sibling's text or was cut off from outside."""
        parent, tip = visit.at, grown.tip
        if self.config.prior.evidence == "logprob":
            visit.evidence = mean_logprob(tree, grown.nodes)
        if self.config.duplicates == "merge" and self._twins.take(tree, tip, parent, visit.evidence):
            self._drop(visit)
            parent.num_coming += 1  # a twin counts as a child that arrived
        elif (stop := tree.stop(tip)) is not None and not STOP_WORDS[stop].is_trainable:
            self._drop(visit)
        else:
            self._born(tree, visit, MCTSNode(tip, parent, is_ended=tree.is_ended(tip)))

    def _born(self, tree: Tree, visit: Visit, child: MCTSNode) -> None:
        """Handle a new child: value it now, or add it below its parent and value it later."""
        visit.child = child
        if self.config.duplicates == "merge":
            self._twins.remember(child, visit.at, tree.length(child.tip))
        value = steering_value(tree, child.tip, self._judge_of(child), oracle=self.config.oracle)
        if value is None and self.config.valued == "when_selected":
            self._counting.release(visit.at)
            self._add(visit, child)
        else:
            self._seek(tree, visit, value)

    def _add(self, visit: Visit, child: MCTSNode) -> None:
        """Add a new child below its parent."""
        parent = visit.at
        parent.num_pending -= 1
        has_changed = arrive(parent, child, visit.evidence, prior=self.config.prior)
        self._counting.add(parent, child)
        if has_changed:
            self._counting.reweigh(parent)
        self._twins.take_early(child, parent)

    def _drop(self, visit: Visit) -> None:
        """Undo a reservation whose growth failed or whose segment has no value; the segment is never chosen."""
        self._counting.release(visit.at)
        if visit.child is visit.at:
            self._counting.close(visit.at)
        else:
            visit.at.num_pending -= 1
            visit.at.num_coming -= 1
            if visit.child is not None:
                self._twins.forget(visit.child, visit.at)

    # -- valuing ------------------------------------------------------------------------------------------------------

    def _judge_of(self, node: MCTSNode) -> str:
        return self.config.outcome if node.is_ended else self.config.judge

    def _next_judge(self, visit: Visit) -> str | None:
        """The judge to ask for the value; None = a probe must grow first."""
        assert visit.child is not None
        if visit.end != NONE:
            return self.config.outcome
        is_probed = self.config.value == "rollout" and not visit.child.is_ended
        return None if is_probed else self._judge_of(visit.child)

    def _ask_value(self, visit: Visit, judge: str | None) -> None:
        """Ask a judge for the value of a segment, or grow its probe."""
        if judge is None:
            command = Grow(visit.valued, until="end", action=self.config.rollout_action, fork=Fork(1, "rollout"))
        else:
            command = Judge((visit.valued,), judge)
        self._waiting.append((command, visit))

    def _seek(self, tree: Tree, visit: Visit, value: float | None) -> None:
        """Use the value if there is one already; otherwise ask for it."""
        judge = self._next_judge(visit)
        if value is None and judge != REWARD:
            self._ask_value(visit, judge)
        else:
            self._value(tree, visit, value)

    def _value(self, tree: Tree, visit: Visit, value: float | None) -> None:
        """Back up the value of a segment. None and a non-finite number are no value."""
        child = visit.child
        assert child is not None
        if value is None or not math.isfinite(value):
            self._drop(visit)
            return
        child.value = value
        if self.config.prior.evidence == "score":
            visit.evidence = value
        if (child.is_ended and self.config.endings == "close") or child.depth >= self.config.max_depth:
            self._counting.close(child)
        if child is not visit.at:
            child.in_flight = 1
            self._add(visit, child)
        self._counting.arrive(child, value)
        if self.config.value_range is None:
            self._descent.see(child)
        if tree.stop(visit.valued) in ANSWERED:
            self._answers.append(Candidate(visit.valued, value))
            if child.is_ended:
                child.mark_answer()
