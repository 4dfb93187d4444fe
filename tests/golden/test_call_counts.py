"""Every search asks for as many requests, judgements and tokens of each role as its algorithm says, by a formula.

The first part plays the strategies in a world in which every growth is `TOKENS` tokens and no path ends early: how
often which action grows, how many nodes which judge is asked about, and what each role spends. The second part runs the
searches over whole answers with a model that grades as well, and counts what its engine was asked. The formulas follow
the sources that the strategies name; the golden files hold further counts.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from tests.golden.calls import ROLE, TOKENS, Endless, requests, rng
from tests.runner.parts import Small

from ramify import plugins
from ramify.config.configure import checked
from ramify.core.strategy import Strategy
from ramify.runner.library import rollout_sync
from ramify.strategies.ab_mcts import a as ab_a
from ramify.strategies.ab_mcts import m as ab_m
from ramify.strategies.beam import AS_PUBLISHED as HF_BEAM
from ramify.strategies.beam import ITS_AS_PUBLISHED, RSTAR, RSTAR_AS_PUBLISHED, Beam, BeamConfig
from ramify.strategies.best_first import BestFirst, BestFirstConfig
from ramify.strategies.best_of_n import BestOfN, BestOfNConfig
from ramify.strategies.dvts import AS_PUBLISHED as DVTS_AS_PUBLISHED
from ramify.strategies.dvts import DVTS, DVTSConfig
from ramify.strategies.lats import AS_PUBLISHED as LATS_AS_PUBLISHED
from ramify.strategies.lats import LATS, LATSConfig
from ramify.strategies.mcts import MCTS
from ramify.strategies.mcts.config import TREEQUEST, MCTSConfig
from ramify.strategies.mctsr import MCTSr
from ramify.strategies.mctsr.config import AS_PUBLISHED as MCTS_LLM
from ramify.strategies.mctsr.config import MATHBLACKBOX, MCTSrConfig
from ramify.strategies.particle_filter import AS_PUBLISHED as PARTICLES_AS_PUBLISHED
from ramify.strategies.particle_filter import ParticleFilter, ParticleFilterConfig
from ramify.strategies.rap import AS_PUBLISHED as RAP_AS_PUBLISHED
from ramify.strategies.rap import RAP, RAPConfig
from ramify.strategies.rebase import AS_PUBLISHED as REBASE_AS_PUBLISHED
from ramify.strategies.rebase import Rebase, RebaseConfig
from ramify.strategies.refine_chain import SELF_REFINE, RefineChain, RefineChainConfig
from ramify.strategies.reject import Reject, RejectConfig
from ramify.strategies.rstar_mcts import AS_PUBLISHED as RSTAR_MCTS_AS_PUBLISHED
from ramify.strategies.rstar_mcts import SAMPLING_AS_PUBLISHED, RStarMCTS
from ramify.strategies.self_consistency import SelfConsistency, SelfConsistencyConfig
from ramify.strategies.tot.bfs import LevelRules
from ramify.strategies.tot.dfs import DepthRules
from ramify.strategies.tot.search import AS_PUBLISHED as TOT_AS_PUBLISHED
from ramify.strategies.tot.search import AS_PUBLISHED_CROSSWORDS, AS_PUBLISHED_TEXT, ToT, ToTConfig
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn


@dataclass(frozen=True, slots=True)
class Counted:
    """A search and what it must ask for."""

    search: str
    """Its name in the plug-in table."""
    build: Callable[[], Strategy]
    grows: Mapping[str, int]
    """Action -> growths."""
    judged: Mapping[str, int] = field(default_factory=dict[str, int])
    """Judge -> nodes that it is asked about."""
    num_requests: int | None = None
    """Requests to the judge, if one request is about several nodes."""
    depth: int | None = None
    """Steps after which a path ends; None = it never does by itself."""


def answers() -> list[Counted]:
    """Whole answers: n of them, judged or not. Refining costs a critique and a rewrite each."""
    found: list[Counted] = []
    for n in (1, 16):
        found += [
            Counted("best_of_n", lambda n=n: BestOfN(BestOfNConfig(n=n, judge="rm"), rng()), {"policy": n}, {"rm": n}),
            Counted("best_of_n", lambda n=n: BestOfN(BestOfNConfig(n=n, vote="majority"), rng()), {"policy": n}),
        ]
    for rollouts in (1, 4, 16):
        # mcts-llm: one answer; then a rollout judges the answer it chose, criticises, rewrites and judges the rewrite.
        refined = {"critique": rollouts, "rewrite": rollouts}
        for config, first, judged in (
            (replace(MCTS_LLM, selection="greedy"), {"policy": 1}, 2 * rollouts),
            (replace(MCTS_LLM, selection="greedy", initialise="dummy"), {"dummy": 1}, 2 * rollouts),
            # The first answer is judged when it is there, beside each time it is chosen.
            (MCTSrConfig(), {"policy": 1}, 1 + 2 * rollouts),
            (MCTSrConfig(in_flight=3), {"policy": 1}, 1 + 2 * rollouts),
            # MathBlackBox begins with an answer and with a refusal, and judges both.
            (MATHBLACKBOX, {"policy": 1, "dummy": 1}, 2 + 2 * rollouts),
        ):
            found.append(
                Counted(
                    "mctsr",
                    lambda config=config, rollouts=rollouts: MCTSr(replace(config, max_rollouts=rollouts), rng()),
                    {**first, **refined},
                    {"grade": judged},
                )
            )
    for n in (1, 4):
        # Self-Refine: an answer, then n - 1 times feedback and a rewrite. Feedback on the last answer changes nothing.
        refined = {"critique": n - 1, "rewrite": n - 1} if n > 1 else {}
        for config, judged in (
            (SELF_REFINE, n - 1),
            (RefineChainConfig(), n - 1),
            (RefineChainConfig(stop="never"), 0),
        ):
            found.append(
                Counted(
                    "refine_chain",
                    lambda config=config, n=n: RefineChain(replace(config, max_attempts=n), rng()),
                    {"policy": 1, **refined},
                    {"grade": judged} if judged else {},
                )
            )
    return found


def adaptive() -> list[Counted]:
    """Searches that decide where the next answer comes from: T answers and T judgements, from wherever."""
    found: list[Counted] = []
    for samples, total in ((2, 9), (3, 24)):
        # treequest: the best answer is popped and `samples` are derived from it, the first ones from the bare prompt.
        found.append(
            Counted(
                "best_first",
                lambda samples=samples, total=total: BestFirst(
                    BestFirstConfig(num_samples=samples, num_answers=total), rng()
                ),
                {"policy": samples, "refine": total - samples},
                {"llm": total},
            )
        )
    for total in (1, 12):
        for name, build in (("ab_mcts", ab_a.ABMCTS), ("ab_mcts_m", ab_m.ABMCTSM)):
            config: Any = (ab_a if name == "ab_mcts" else ab_m).AS_PUBLISHED
            alone = replace(config, num_answers=total, actions=())
            found.append(Counted(name, lambda build=build, c=alone: build(c, rng()), {"policy": total}, {"llm": total}))
    return found


def consistent() -> list[Counted]:
    """n answers that all differ: none is settled early, and each is compared with every earlier one."""
    return [
        Counted(
            "self_consistency",
            lambda n=n, stop=stop: SelfConsistency(SelfConsistencyConfig(n=n, stop=stop), rng()),
            {"policy": n},
            {"agreement": n * (n + 1) // 2},
            n,
        )
        for n in (1, 12)
        for stop in ("window", "beta")
    ]


def levels() -> list[Counted]:
    """Searches by levels: each level grows its whole width, and each step is judged once."""
    found: list[Counted] = []
    for width, samples, depth in ((1, 4, 3), (4, 4, 5), (2, 8, 2)):
        n = width * samples

        def case(name: str, build: Callable[[], Strategy], total: int) -> None:
            found.append(Counted(name, build, {"policy": total}, {"process": total}))

        shape = {"width": width, "samples": samples, "max_depth": depth}
        # search-and-learn: n beams at each of L levels, of the beam search and of DVTS.
        for beam in (BeamConfig(), HF_BEAM):
            case("beam", lambda c=beam, s=shape: Beam(replace(c, **s), rng()), n * depth)
        for dvts in (DVTSConfig(), DVTS_AS_PUBLISHED):
            case("dvts", lambda c=dvts, s=shape: DVTS(replace(c, **s), rng()), n * depth)
        # its_hub and rStar: `samples` first steps; then `samples` from each of the best `width` that there are.
        live = [1]
        for _ in range(depth - 1):
            live.append(min(width, live[-1] * samples))
        for beam in (ITS_AS_PUBLISHED, RSTAR, RSTAR_AS_PUBLISHED):
            case("beam", lambda c=beam, s=shape: Beam(replace(c, **s), rng()), samples * sum(live))
        # REBASE: the width of a level is the search's less the paths that ended, of which there are none.
        for rebase in (RebaseConfig(), replace(REBASE_AS_PUBLISHED, rounding="guarded_ceil")):
            case("rebase", lambda c=rebase, n=n, d=depth: Rebase(replace(c, width=n, max_depth=d), rng()), n * depth)
        for particles in (ParticleFilterConfig(), PARTICLES_AS_PUBLISHED):
            case(
                "particle_filter",
                lambda c=particles, n=n, d=depth: ParticleFilter(replace(c, n=n, max_depth=d), rng()),
                n * depth,
            )
    # Lookahead: k probes behind each step of every level but the last, whose paths have ended; only the last is judged.
    look = replace(DVTS_AS_PUBLISHED, width=2, samples=4, max_depth=3, lookahead=2)
    found.append(
        Counted("dvts", lambda: DVTS(look, rng()), {"policy": 8 * 3, "lookahead": 2 * 8 * 2}, {"process": 8 * 3})
    )
    return found


def thoughts() -> list[Counted]:
    """Tree of Thoughts: k first steps, then k from each of the best b; `v` values of each, or `v` votes on a level."""
    found: list[Counted] = []
    for k, b, v, depth in ((5, 5, 3, 4), (8, 3, 2, 3), (2, 1, 1, 2)):
        total = k + (depth - 1) * min(b, k) * k
        rules = LevelRules(num_kept=b)
        published = replace(TOT_AS_PUBLISHED, bfs=replace(TOT_AS_PUBLISHED.bfs, num_kept=b))
        for config in (ToTConfig(bfs=rules), published):
            tot = replace(config, width=k, num_levels=depth, attempts=v)
            found.append(Counted("tot", lambda c=tot: ToT(c, rng()), {"policy": total}, {"process": total * v}))
        voted = replace(AS_PUBLISHED_TEXT, width=k, num_levels=depth, attempts=v)
        total = k + (depth - 1) * k
        found.append(
            Counted(
                "tot", lambda c=voted: ToT(c, rng()), {"policy": total}, {"process": total * v}, num_requests=depth * v
            )
        )
    for k, tried, depth in ((3, 2, 3), (4, 1, 5), (2, 2, 4)):
        # Depth first without an end: every state above the last level grows k steps, and the best few are gone into.
        states = sum(tried**level for level in range(depth))
        rules = DepthRules(max_tried=tried, max_steps=1000)
        config = replace(AS_PUBLISHED_CROSSWORDS, width=k, num_levels=depth, dfs=rules)
        found.append(Counted("tot", lambda c=config: ToT(c, rng()), {"policy": k * states}, {"process": k * states}))
    return found


def monte_carlo() -> list[Counted]:
    """Monte Carlo tree searches over steps."""
    found: list[Counted] = []
    for n in (1, 6, 40):
        # PUCT: each of n segments is judged. None has ended, so one path is grown to its end and judged.
        deep = MCTSConfig(n=n, max_depth=1000)
        probed = replace(deep, value="rollout", finish="leave")
        found += [
            Counted("mcts", lambda c=deep: MCTS(c, rng()), {"policy": n + 1}, {"process": n + 1}),
            # With values of rollouts each segment is valued by the outcome of a probe.
            Counted(
                "mcts",
                lambda c=probed: MCTS(c, rng()),
                {"policy": n, "rollout": n},
                {"process": n},
            ),
            # treequest's StandardMCTS: T samples, T scores.
            Counted("mcts", lambda n=n: MCTS(replace(TREEQUEST, n=n), rng()), {"policy": n}, {"process": n}),
        ]
    for iterations, width, rollout, depth in ((1, 3, 4, 50), (6, 5, 2, 50), (4, 2, 0, 50)):
        # LATS: an iteration expands what it selected, and then the best of each `rollout` states below.
        total = iterations * width * (1 + rollout)
        lats = LATSConfig(iterations=iterations, width=width, rollout_depth=rollout, depth_limit=depth)
        found.append(Counted("lats", lambda c=lats: LATS(c, rng()), {"policy": total}, {"process": total}))
    for width, rollout in ((5, 4), (3, 2)):
        # As published a rollout is as deep as `rollout` from the root, so the first iteration grows one state less.
        lats = replace(LATS_AS_PUBLISHED, iterations=1, width=width, rollout_depth=rollout)
        total = width * rollout
        found.append(Counted("lats", lambda c=lats: LATS(c, rng()), {"policy": total}, {"process": total}))
    for iterations, width, depth in ((1, 4, 5), (3, 4, 5), (2, 2, 1)):
        for config in (RAPConfig(), RAP_AS_PUBLISHED):
            # RAP: each iteration goes into another step of the root and simulates to the depth limit. The root and the
            # states above the limit are expanded; a step's fast reward is asked for as it grows, its reward as it is
            # visited. As published a state at the limit that was selected, not simulated to, keeps its fast reward.
            rap = replace(config, iterations=iterations, width=width, depth_limit=depth, unvisited="first")
            steps = width * (1 + iterations * (depth - 1))
            num_fast = iterations - 1 if config is RAP_AS_PUBLISHED and depth == 1 else 0
            judged = {"fast": steps, "process": iterations * depth - num_fast}
            found.append(Counted("rap", lambda c=rap: RAP(c, rng()), {"policy": steps}, judged))
    for rollouts, width, depth in ((1, 4, 5), (2, 4, 5), (5, 4, 3), (8, 12, 16), (4, 2, 3)):
        # rStar: without an answer nothing is backed up, so all rollouts follow the first, which expands a state of each
        # depth. Each other one goes one deeper: it expands one of the `width` deepest states, whose steps are beyond
        # the limit. When all of those are dead, the rollout that finds the state above them so is lost.
        states = depth + min(rollouts - 1, width)
        for config, judged in ((SAMPLING_AS_PUBLISHED, 0), (RSTAR_MCTS_AS_PUBLISHED, width * depth)):
            rstar = replace(config, iterations=rollouts, width=width, max_depth=depth)
            found.append(
                Counted(
                    "rstar_mcts",
                    lambda c=rstar: RStarMCTS(c, rng()),
                    {"policy": width * states},
                    {"process": judged} if judged else {},
                )
            )
    return found


def rejecting() -> list[Counted]:
    """Reject: chains from the question until one is accepted, of which there is none here."""
    found: list[Counted] = []
    for chains, depth in ((1, 1), (6, 4)):
        every = RejectConfig(max_chains=chains)
        # By the reward chains grow whole; by a judge step by step, and each step but the last is judged.
        judged = replace(every, judge="process", threshold=-1.0)
        steps = chains * (depth - 1)
        found += [
            Counted("reject", lambda c=every: Reject(c, rng()), {"policy": chains}, depth=1),
            Counted(
                "reject",
                lambda c=judged: Reject(c, rng()),
                {"policy": chains * depth},
                {"process": steps} if steps else {},
                depth=depth,
            ),
        ]
    # A chain whose first step is rejected costs one step and one judgement.
    strict = RejectConfig(max_chains=9, judge="process", threshold=2.0)
    found.append(Counted("reject", lambda: Reject(strict, rng()), {"policy": 9}, {"process": 9}, depth=3))
    return found


CASES = [*answers(), *adaptive(), *consistent(), *levels(), *thoughts(), *monte_carlo(), *rejecting()]
NO_SEARCH = frozenset(
    ("at2po", "chains", "deepsearch", "offline", "online", "planned", "segments", "tree_grpo", "treepo", "treerl")
)
"""Strategies that grow trees for training; their counts are in the golden files `rollout_…`."""


@pytest.mark.covers("S2.4", "S4.5")
@pytest.mark.parametrize("case", CASES, ids=[f"{case.search}-{number}" for number, case in enumerate(CASES)])
def test_a_search_asks_for_what_its_algorithm_says(case: Counted) -> None:
    found = requests(case.build(), Endless(case.depth))
    assert (found.grows, found.judged) == (case.grows, case.judged)
    if case.num_requests is not None:
        assert found.num_judge_requests == case.num_requests
    tokens = Counter[str]()
    for action, number in case.grows.items():
        tokens[ROLE.get(action, "policy")] += 0 if action == "dummy" else number * TOKENS
    assert found.tokens == {role: number for role, number in tokens.items() if number}


def test_every_search_is_counted() -> None:
    assert {case.search for case in CASES} == set(plugins.known("strategy")) - NO_SEARCH


@pytest.mark.parametrize("total", [1, 5, 30])
@pytest.mark.parametrize("config", [ab_a.AS_PUBLISHED, ab_a.ABMCTSConfig(), ab_m.AS_PUBLISHED, ab_m.ABMCTSMConfig()])
def test_ab_mcts_grows_and_judges_each_answer_once_wherever_it_comes_from(config: Any, total: int) -> None:
    build: Any = ab_a.ABMCTS if isinstance(config, ab_a.ABMCTSConfig) else ab_m.ABMCTSM
    found = requests(build(replace(config, num_answers=total), rng()))
    assert found.grows["policy"] >= 1 and set(found.grows) <= {"policy", "refine"}
    assert (sum(found.grows.values()), found.judged) == (total, {"llm": total})
    assert found.tokens == {"policy": total * TOKENS}


def test_lats_as_published_rolls_out_less_the_deeper_it_selects() -> None:
    """An iteration that selects a state at depth s expands it, and one of each further depth below 4."""
    config = replace(LATS_AS_PUBLISHED, iterations=8, width=3, rollout_depth=4)
    found = requests(LATS(config, rng()), Endless())
    depths = found.depths_of_forks("lats")
    assert len(depths) == 8
    assert found.grows["policy"] == sum(3 * (1 + max(0, 4 - (depth + 1))) for depth in depths)


def test_rstar_expands_a_state_of_each_depth_in_a_rollout_at_most() -> None:
    config = replace(RSTAR_MCTS_AS_PUBLISHED, iterations=12, width=4, max_depth=6)
    found = requests(RStarMCTS(config, rng()), Endless(5))
    assert 0 < found.grows["policy"] <= 12 * 6 * 4
    assert found.judged["process"] <= found.grows["policy"]


# -- requests to an engine ------------------------------------------------------------------------------------------

REPLIES = {"policy": "It is 4.", "critique": "Not quite.", "rewrite": "It is 3 then.", "grade": "50"}
"""What the model says in each kind of request."""


def kind_of(asked: str) -> str:
    kinds = {"Grade the answer": "grade", "critique of that answer": "rewrite", "Say what is wrong": "critique"}
    return next((kind for words, kind in kinds.items() if words in asked), "policy")


@dataclass(frozen=True, slots=True)
class Roles:
    """What was asked of each kind of request."""

    policy: int = 0
    rewrite: int = 0
    critique: int = 0
    grade: int = 0


def mctsr(config: MCTSrConfig, *, answers: int, judgements: int) -> tuple[Mapping[str, Any], Roles]:
    options = msgspec.to_builtins(replace(config, selection="greedy"))
    roles = Roles(answers, rewrite=config.max_rollouts, critique=config.max_rollouts, grade=judgements)
    return {"name": "mctsr", "options": options}, roles


ASKED: Mapping[str, tuple[Mapping[str, Any], Roles]] = {
    "mcts-llm": mctsr(replace(MCTS_LLM, max_rollouts=4), answers=1, judgements=8),
    "mcts-llm, dummy": mctsr(replace(MCTS_LLM, max_rollouts=4, initialise="dummy"), answers=0, judgements=8),
    "mctsr": mctsr(replace(MCTSrConfig(), max_rollouts=6), answers=1, judgements=13),
    "mathblackbox": mctsr(replace(MATHBLACKBOX, max_rollouts=4), answers=1, judgements=10),
    "best_of_n": ({"name": "best_of_n", "options": {"n": 5, "judge": "grade"}}, Roles(policy=5, grade=5)),
    "self_consistency": ({"name": "best_of_n", "options": {"n": 5, "vote": "majority"}}, Roles(policy=5)),
    "refine_chain": (
        {"name": "refine_chain", "options": {"max_attempts": 4, "approve": 90.0}},
        Roles(policy=1, rewrite=3, critique=3, grade=3),
    ),
    "ab_mcts": (
        {"name": "ab_mcts", "options": {"num_answers": 7, "judge": "grade", "score_range": [-100, 100], "actions": []}},
        Roles(policy=7, grade=7),
    ),
}


@pytest.mark.covers("S2.4", "S2.7")
@pytest.mark.parametrize("num_faults", [0, 2], ids=["read at once", "read in the third reply"])
@pytest.mark.parametrize("name", ASKED)
def test_a_search_over_answers_spends_on_each_role_what_its_requests_cost(name: str, num_faults: int) -> None:
    """A judgement that cannot be read is asked again in the same context, up to three replies."""
    strategy, roles = ASKED[name]
    asked = Counter[str]()

    def rule(turn: ScriptedTurn) -> str:
        kind = kind_of(turn.context)
        asked[kind] += 1
        is_unread = kind == "grade" and turn.context.count("fifty") < num_faults
        return "fifty" if is_unread else REPLIES[kind]

    config, faults = checked(
        {
            "format": "refine",
            "judges": {"grade": {"kind": "llm", "options": {"mode": "self_reward"}}},
            "strategy": strategy,
            "growth": {"max_response_tokens": 4000},
        }
    )
    assert config is not None, faults
    engine = Scripted(rule)
    (tree,) = rollout_sync(config=config, engine=engine, task=Small(judges=(), tools=())).trees
    cost = {kind: len(engine.codec.encode(text)) + 1 for kind, text in [*REPLIES.items(), ("fifty", "fifty")]}
    replies = roles.grade * (1 + num_faults)
    wanted = {
        "policy": (roles.policy + roles.rewrite, roles.policy * cost["policy"] + roles.rewrite * cost["rewrite"]),
        "critique": (roles.critique, roles.critique * cost["critique"]),
        "judge": (replies, roles.grade * (cost["grade"] + num_faults * cost["fifty"])),
    }
    spent = {role: (spend.engine_calls, spend.decode) for role, spend in tree.spent().items() if spend.engine_calls}
    assert spent == {role: counts for role, counts in wanted.items() if counts[0]}
    assert asked == +Counter(policy=roles.policy, rewrite=roles.rewrite, critique=roles.critique, grade=replies)
