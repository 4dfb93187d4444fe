"""Evaluation: runs searches on the same problems within the same budget, and reports correctness and cost.

Grading begins after a search has ended, so no grade can steer it. `pass@1` grades the answer that a search returns.
Coverage is a different number: whether any candidate is right. Every vote is graded, not only the one that the search
uses. The denominator is fixed in advance: a tree that failed or gave no answer is wrong. The cost includes everything
that was started, by every role, also failures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import get_args

from ramify.config.run_config import RunConfig
from ramify.core.ledger import Spend
from ramify.core.problem import Problem
from ramify.core.strategy import Vote
from ramify.core.tree import Tree
from ramify.experiments.paired import difference_dict, paired_difference
from ramify.experiments.proportions import wilson
from ramify.planner.interval import Interval
from ramify.runner.answers import Answers
from ramify.runner.build import prepared_run
from ramify.runner.deadline import finished
from ramify.runner.events import Event, Observer, TreeClosed
from ramify.runner.run import Run
from ramify.strategies.parts.steering import REWARD

RIGHT = 1.0
"""The lowest reward of a right answer."""
VOTES: tuple[Vote, ...] = get_args(Vote)


@dataclass(frozen=True, slots=True)
class Graded:
    """One graded tree: 1.0 is right, 0.0 wrong."""

    returned: float
    covered: float
    by_vote: Mapping[Vote, float]
    num_candidates: int
    spent: Spend
    """The sum over all roles."""
    decode_by_role: Mapping[str, int]
    is_steered_by_oracle: bool
    """Whether the search declares that it uses a judge that saw the gold answer."""
    is_picked_by_metric: bool
    """Whether the judge that picks among the answers also grades them."""
    is_priced: bool = False
    """Whether engines have prices, so that `spent.dollars` is known."""
    fault: str = ""
    """The fault that ended the search; "" = none did."""


@dataclass(frozen=True, slots=True)
class EvalLine:
    """One search at one budget: a row of the report. Figures are means over problems, each averaged over its seeds."""

    name: str
    budget: float | None
    num_problems: int
    num_seeds: int
    returned: float
    interval: tuple[float, float]
    """Wilson's interval, for the first seed's answers."""
    covered: float
    by_vote: Mapping[Vote, float]
    candidates: float
    decode: float
    decode_by_role: Mapping[str, float]
    prefill_uncached: float
    prefill_cached: float
    engine_calls: float
    dollars: float | None
    """None = no engine has prices."""
    tool_calls: float
    judge_calls: float
    unspent: float | None
    """Share of the budget that was not used; None = no budget."""
    seconds: float
    """CPU seconds, for all problems and seeds."""
    less_first: Interval | None
    """`returned` minus that of the first search at this budget, paired by problem; None = this is the first search."""
    is_steered_by_oracle: bool
    is_picked_by_metric: bool
    num_failed: int
    """Searches that a fault ended."""
    first_fault: str
    """The fault of the first of them; "" = there is none."""
    by_problem: Mapping[str, float]
    """Problem -> share of the seeds whose returned answer was right, from which any two lines can be compared."""

    def as_dict(self) -> Mapping[str, object]:
        return asdict(self) | {"less_first": None if self.less_first is None else difference_dict(self.less_first)}


async def evaluated(
    config: RunConfig, problems: Sequence[Problem], *, observers: Sequence[Observer] = ()
) -> dict[str, Graded]:
    """Search every problem and grade the result; keys are uids."""
    run = Run(prepared_run(config, problems))
    closed: dict[int, TreeClosed] = {}

    def keep(event: Event) -> None:
        if isinstance(event, TreeClosed):
            closed[event.index] = event

    try:
        await run.grow([*observers, keep])
        run.check_answered()
        return {problems[index].uid: await graded(run, problems[index], event) for index, event in closed.items()}
    finally:
        await finished(run.close())


async def graded(run: Run, problem: Problem, closed: TreeClosed) -> Graded:
    """Grade one finished tree of `run` by the task's own judge."""
    tree, answers = closed.tree, run.prepared.answering.of(closed.tree)
    rewards = await _rewards(run, problem, tree, answers) if closed.is_whole else {}
    total = Spend()
    for spend in closed.spent.values():
        total.add(spend)
    return Graded(
        returned=_is_right(rewards, answers.node),
        covered=max((_is_right(rewards, node) for node in rewards), default=0.0),
        by_vote={vote: _is_right(rewards, answers.by_vote.get(vote)) for vote in VOTES},
        num_candidates=answers.num_candidates,
        spent=total,
        decode_by_role={role: spend.decode for role, spend in closed.spent.items()},
        is_steered_by_oracle=run.prepared.config.strategy.options.get("oracle") == "declared",
        is_picked_by_metric=_is_picked_by_metric(run),
        is_priced=bool(run.prepared.prices),
        fault="" if closed.is_whole else closed.reason,
    )


async def _rewards(run: Run, problem: Problem, tree: Tree, answers: Answers) -> dict[int, float | None]:
    """Node of every candidate with an answer -> its reward. Uses the score that it got as a leaf, or else judges it
    now."""
    if not run.prepared.judging.leaf:
        return {}
    judge = run.prepared.judging.leaf[-1]
    found: dict[int, float | None] = {}
    for node in sorted(node for solution in answers.ranked for node in solution.nodes):
        known = next((score.value for score in reversed(tree.scores(node)) if score.judge == judge), None)
        if known is None:
            scores = await run.prepared.judging.scores(judge, [tree.branch(node)], problem)
            known = scores[0].value
        found[node] = known
    return found


def _is_picked_by_metric(run: Run) -> bool:
    options = run.prepared.config.strategy.options
    if run.prepared.answering.vote not in ("best", "weighted") or "judge" not in options:
        return False
    return not {options["judge"], options.get("outcome")}.isdisjoint({REWARD, *run.prepared.judging.leaf[-1:]})


def _is_right(rewards: Mapping[int, float | None], node: int | None) -> float:
    reward = None if node is None else rewards.get(node)
    return float(reward is not None and reward >= RIGHT)


def eval_line(
    name: str,
    seeds: Sequence[Mapping[str, Graded]],
    *,
    first: Sequence[Mapping[str, Graded]] | None,
    limit: str,
    budget: float | None,
    seconds: float,
    num_comparisons: int = 1,
) -> EvalLine:
    """One search's line. `seeds`: problem -> its tree, one mapping per seed; `first`: the search to compare with.

    `budget` is in the unit that `limit` names. The intervals of all `num_comparisons` lines hold together with 95 %.
    """
    uids = sorted(seeds[0])
    every = [seed[uid] for seed in seeds for uid in uids]
    by_problem = _by_problem(seeds, uids)
    returned = [*by_problem.values()]
    spent = fmean(getattr(tree.spent, limit) for tree in every)
    return EvalLine(
        name=name,
        budget=budget,
        num_problems=len(uids),
        num_seeds=len(seeds),
        returned=fmean(returned),
        interval=wilson(sum(seeds[0][uid].returned >= RIGHT for uid in uids), len(uids)),
        covered=fmean(tree.covered for tree in every),
        by_vote={vote: fmean(tree.by_vote[vote] for tree in every) for vote in VOTES},
        candidates=fmean(tree.num_candidates for tree in every),
        decode=fmean(tree.spent.decode for tree in every),
        decode_by_role=_by_role(every),
        prefill_uncached=fmean(tree.spent.prefill_uncached for tree in every),
        prefill_cached=fmean(tree.spent.prefill_cached for tree in every),
        engine_calls=fmean(tree.spent.engine_calls for tree in every),
        dollars=fmean(tree.spent.dollars for tree in every) if all(tree.is_priced for tree in every) else None,
        tool_calls=fmean(tree.spent.tool_calls for tree in every),
        judge_calls=fmean(tree.spent.judge_calls for tree in every),
        unspent=None if budget is None else 1 - spent / budget,
        seconds=seconds,
        less_first=None
        if first is None
        else paired_difference(returned, [*_by_problem(first, uids).values()], num_comparisons=num_comparisons),
        is_steered_by_oracle=any(tree.is_steered_by_oracle for tree in every),
        is_picked_by_metric=any(tree.is_picked_by_metric for tree in every),
        num_failed=sum(bool(tree.fault) for tree in every),
        first_fault=next((tree.fault for tree in every if tree.fault), ""),
        by_problem=by_problem,
    )


def _by_problem(seeds: Sequence[Mapping[str, Graded]], uids: Sequence[str]) -> dict[str, float]:
    return {uid: fmean(seed[uid].returned for seed in seeds) for uid in uids}


def _by_role(trees: Sequence[Graded]) -> dict[str, float]:
    roles = sorted({role for tree in trees for role in tree.decode_by_role})
    return {role: fmean(tree.decode_by_role.get(role, 0) for tree in trees) for role in roles}
