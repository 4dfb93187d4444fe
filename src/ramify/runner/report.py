"""Report: the results of a run, summed from its trees as they close."""

import resource
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from ramify.core.action import ActionConfig
from ramify.core.ledger import Spend
from ramify.core.prices import PICODOLLARS, Prices
from ramify.core.segment import Usage
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import Tree
from ramify.engines.fleet.replica import ReplicaStats
from ramify.engines.fleet.replicas import Replicas
from ramify.engines.in_front import innermost
from ramify.engines.retrying import Retrying
from ramify.runner.events import EngineFault, Event, TreeClosed
from ramify.runner.tool_metrics import merged_figures


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Requests made to one of a run's engines."""

    actions: tuple[str, ...]
    """Actions that sample from it."""
    requests: int
    retries: int
    """Tries after the first, caused by faults."""
    waits: int
    """How often a request waited because the engine was busy, lost a replica or could not be reached."""
    wasted_tokens: int
    """Tokens sampled in turns that the engine aborted."""
    replicas: tuple[ReplicaStats, ...] = ()
    """Empty = it has none."""


@dataclass(slots=True)
class RunReport:
    """Totals of a run. Mutated by `observe` only."""

    trees: int = 0
    failed_trees: int = 0
    leaves: int = 0
    failed_leaves: int = 0
    decode_tokens: int = 0
    prefill_cached: int = 0
    prefill_uncached: int = 0
    engine_calls: int = 0
    probes: int = 0
    """Requests for one token before the start. Tokens, calls and dollars include them."""
    dollars: float | None = None
    """None = no engine has prices."""
    tool_calls: int = 0
    turns: int = 0
    judge_calls: int = 0
    mean_reward: float | None = None
    """Mean over judged leaves; None = no leaf was judged."""
    coverage: float | None = None
    """Share of trees with at least one leaf of the full reward 1."""
    mixed_groups: float | None = None
    """Share of trees whose leaves differ in reward: those with a training signal."""
    truncated_share: float | None = None
    is_oracle: bool = False
    """Whether a judge that saw secrets gave any of the rewards."""
    stop_words: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    """Kind of fault of an engine, such as `http_500` -> tries that it ended, those included that were tried again."""
    unfinished: dict[str, str] = field(default_factory=dict)
    """Problem uid -> why its tree was not finished."""
    tools: dict[str, float] = field(default_factory=dict)
    engines: dict[str, EngineReport] = field(default_factory=dict)
    """By name; empty = the run has one engine, without replicas."""
    seconds: float = 0.0
    max_rss_mb: float = 0.0
    """Highest memory of the process, in MiB. If several processes shared the run, the highest of any."""
    _sum_rewards: float = 0.0
    _num_judged: int = 0
    _num_solved: int = 0
    _num_mixed: int = 0

    def observe(self, event: Event) -> None:
        """Add a tree when it closes, and a fault of an engine."""
        if isinstance(event, EngineFault):
            self.faults[event.kind] = self.faults.get(event.kind, 0) + 1
        elif isinstance(event, TreeClosed):
            self._add(event.tree, event.spent)
            if not event.is_whole:
                self.failed_trees += 1
                self.unfinished[event.tree.problem.uid] = event.reason

    def add_probe(self, usage: Usage, prices: Prices | None) -> None:
        """Add what was sampled before the start."""
        self.probes += 1
        self.engine_calls += 1
        self.decode_tokens += usage.num_billed
        self.prefill_cached += usage.num_cached
        self.prefill_uncached += usage.num_prefilled
        if prices is not None and self.dollars is not None:
            self.dollars += prices.cost(usage) / PICODOLLARS

    def _add(self, tree: Tree, spent: Mapping[str, Spend]) -> None:
        self.trees += 1
        total = Spend()
        for spend in spent.values():
            total.add(spend)
        self.leaves += total.leaves
        self.failed_leaves += total.failed_leaves
        self.decode_tokens += total.decode
        self.prefill_cached += total.prefill_cached
        self.prefill_uncached += total.prefill_uncached
        self.engine_calls += total.engine_calls
        if self.dollars is not None:
            self.dollars += total.dollars
        self.tool_calls += total.tool_calls
        self.turns += total.turns
        self.judge_calls += total.judge_calls
        leaves = tree.leaves()
        counts = Counter(self.stop_words)
        counts.update(stop for leaf in leaves if (stop := tree.stop(leaf)) is not None)
        self.stop_words = dict(sorted(counts.items()))
        self.is_oracle |= any(score.is_oracle for leaf in leaves for score in tree.scores(leaf))
        self._add_rewards([r for leaf in leaves if (r := tree.reward(leaf)) is not None])

    def _add_rewards(self, rewards: list[float]) -> None:
        """Add the rewards of one tree's judged leaves."""
        self._sum_rewards += sum(rewards)
        self._num_judged += len(rewards)
        self._num_solved += any(reward >= 1 for reward in rewards)
        self._num_mixed += len(set(rewards)) > 1

    def finish(self, *, seconds: float, tools: dict[str, float], engines: Mapping[str, EngineReport]) -> "RunReport":
        """Compute the figures over all trees. Mutates and returns the report."""
        self.seconds, self.tools, self.engines = seconds, tools, dict(engines)
        self.max_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return self._divided()

    def _divided(self) -> "RunReport":
        """Compute means and shares from the sums. Mutates and returns the report."""
        if self._num_judged:
            self.mean_reward = self._sum_rewards / self._num_judged
            self.coverage = self._num_solved / self.trees
            self.mixed_groups = self._num_mixed / self.trees
        truncated = sum(n for word, n in self.stop_words.items() if STOP_WORDS[word].is_truncated)
        self.truncated_share = truncated / self.leaves if self.leaves else None
        return self

    @classmethod
    def merged(cls, reports: Iterable["RunReport"], *, seconds: float) -> "RunReport":
        """One report of a run whose trees several processes grew in `seconds`. Means and shares are over all trees."""
        whole, every = cls(), list(reports)
        for report in every:
            whole._include(report)
        tools = merged_figures([report.tools for report in every])
        whole.seconds, whole.tools, whole.engines = seconds, tools, _merged_engines(every)
        return whole._divided()

    def _include(self, other: "RunReport") -> None:
        """Add the sums of another part of the run. Mutates the report."""
        self.trees += other.trees
        self.failed_trees += other.failed_trees
        self.leaves += other.leaves
        self.failed_leaves += other.failed_leaves
        self.decode_tokens += other.decode_tokens
        self.prefill_cached += other.prefill_cached
        self.prefill_uncached += other.prefill_uncached
        self.engine_calls += other.engine_calls
        self.probes += other.probes
        self.tool_calls += other.tool_calls
        self.turns += other.turns
        self.judge_calls += other.judge_calls
        self._sum_rewards += other._sum_rewards
        self._num_judged += other._num_judged
        self._num_solved += other._num_solved
        self._num_mixed += other._num_mixed
        if other.dollars is not None:
            self.dollars = (self.dollars or 0.0) + other.dollars
        self.is_oracle |= other.is_oracle
        self.stop_words = dict(sorted((Counter(self.stop_words) + Counter(other.stop_words)).items()))
        self.faults = dict(Counter(self.faults) + Counter(other.faults))
        self.unfinished |= other.unfinished
        self.max_rss_mb = max(self.max_rss_mb, other.max_rss_mb)

    def as_dict(self) -> dict[str, object]:
        """The report as plain values for JSON, without the private sums."""
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}


def _merged_engines(reports: Sequence[RunReport]) -> dict[str, EngineReport]:
    """For each engine by name, what all processes together asked of it."""
    names = dict.fromkeys(name for report in reports for name in report.engines)
    return {name: _merged_engine([r.engines[name] for r in reports if name in r.engines]) for name in names}


def _merged_engine(reports: Sequence[EngineReport]) -> EngineReport:
    replicas: dict[str, ReplicaStats] = {}
    for stats in (stats for report in reports for stats in report.replicas):
        replicas[stats.name] = stats if stats.name not in replicas else _merged_replica(replicas[stats.name], stats)
    return EngineReport(
        actions=reports[0].actions,
        requests=sum(report.requests for report in reports),
        retries=sum(report.retries for report in reports),
        waits=sum(report.waits for report in reports),
        wasted_tokens=sum(report.wasted_tokens for report in reports),
        replicas=tuple(replicas.values()),
    )


def _merged_replica(one: ReplicaStats, other: ReplicaStats) -> ReplicaStats:
    """Two processes' statistics of one server: requests are summed; the state is that of the process that had
    trouble."""
    worst = other if one.state == "ready" else one
    return replace(
        worst,
        in_flight=one.in_flight + other.in_flight,
        num_requests=one.num_requests + other.num_requests,
        num_failed=one.num_failed + other.num_failed,
        num_spills=one.num_spills + other.num_spills,
        prefill_cached=one.prefill_cached + other.prefill_cached,
        prefill_uncached=one.prefill_uncached + other.prefill_uncached,
    )


def engine_reports(engines: Mapping[str, Retrying], actions: Mapping[str, ActionConfig]) -> dict[str, EngineReport]:
    """Report of each engine by name. Empty if there is one engine without replicas: the totals already say all."""
    reports: dict[str, EngineReport] = {}
    for name, engine in engines.items():
        behind = innermost(engine)
        reports[name] = EngineReport(
            actions=tuple(action for action, config in actions.items() if config.engine == name),
            requests=engine.num_requests,
            retries=engine.num_retries,
            waits=engine.num_waits,
            wasted_tokens=engine.num_wasted,
            replicas=behind.stats if isinstance(behind, Replicas) else (),
        )
    return reports if len(reports) > 1 or any(report.replicas for report in reports.values()) else {}
