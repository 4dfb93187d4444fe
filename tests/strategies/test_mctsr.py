"""MCTSr: what is asked, what failures cost, and which answer is chosen, at any number of rollouts in flight."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden.mctsr import AnswersWorld
from tests.runner.parts import grown
from tests.strategies.world import Journey, ListDraws, varied

from ramify.config.run_config import StrategyConfig
from ramify.core.action import ActionConfig
from ramify.core.command import Command, Grow, Judge, Score
from ramify.core.errors import ConfigError, ContractError
from ramify.core.limits import Limits
from ramify.core.tree import NONE, ROOT, Tree
from ramify.runner.driver import Asked
from ramify.strategies.mctsr.answers import AnswerTree, MCTSrAnswer
from ramify.strategies.mctsr.config import AS_PUBLISHED, MATHBLACKBOX, MCTSrConfig
from ramify.strategies.mctsr.search import MCTSr
from ramify.strategies.parts.draws import Draws
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

GREEDY = MCTSrConfig(selection="greedy")


def played(config: MCTSrConfig, **options: object) -> Journey:
    strategy = MCTSr(config, np.random.default_rng(3))
    return Journey(strategy, AnswersWorld(), **options).run()  # type: ignore[arg-type]


def asked(trip: Journey) -> list[Command]:
    return [command for event in trip.events if isinstance(event, Asked) for command in event.commands]


def answers(trip: Journey) -> AnswerTree:
    strategy = trip.driver.strategy
    assert isinstance(strategy, MCTSr)
    return strategy.answers


def actions(trip: Journey) -> list[str]:
    return [command.action if isinstance(command, Grow) else "judge" for command in asked(trip)]


def seeded_grades(tree: Tree, command: Judge) -> list[float | None]:
    return [float((tree.node_seed(node) // 13 + command.attempt * 37) % 201 - 100) for node in command.nodes]


@pytest.mark.covers("S2.1", "S2.4")
def test_a_rollout_judges_and_criticises_at_once_then_rewrites_then_judges() -> None:
    trip = played(replace(GREEDY, max_rollouts=1), judge=lambda tree, command: [50.0])
    assert actions(trip) == ["policy", "judge", "judge", "critique", "rewrite", "judge"]
    asks = [len(event.commands) for event in trip.events if isinstance(event, Asked)]
    assert asks == [1, 1, 2, 1, 1]


@pytest.mark.covers("S2.4")
def test_each_judgement_of_an_answer_is_a_sample_with_a_number_of_its_own() -> None:
    trip = played(replace(GREEDY, max_rollouts=12), judge=seeded_grades)
    seen = [(command.nodes, command.attempt) for command in asked(trip) if isinstance(command, Judge)]
    assert len(set(seen)) == len(seen)
    assert all(len(a.samples) == sum(nodes == (a.node,) for nodes, _ in seen) for a in answers(trip).answers)


def test_critique_and_rewrite_hang_below_what_they_quote() -> None:
    trip = played(replace(GREEDY, max_rollouts=1), judge=lambda tree, command: [50.0])
    (answer,) = trip.tree.stems()
    (critique,) = trip.tree.derived(answer)
    (rewrite,) = trip.tree.derived(critique)
    assert [trip.tree.role(n) for n in (answer, critique, rewrite)] == ["policy", "critique", "policy"]
    assert [candidate.node for candidate in trip.driver.strategy.candidates(trip.tree)] == [answer, rewrite]


@pytest.mark.covers("S2.2")
@pytest.mark.covers("S2.2")
def test_a_search_may_begin_with_a_fixed_answer_or_with_both() -> None:
    first = {
        initialise: actions(played(replace(GREEDY, initialise=initialise, max_rollouts=1)))
        for initialise in ("dummy", "both")
    }
    assert first["dummy"].count("policy") == 0 and first["dummy"][0] == "dummy"
    assert first["both"][:2] == ["policy", "dummy"]


@given(
    config=st.builds(
        partial(varied, MCTSrConfig()),
        max_rollouts=st.integers(1, 40),
        in_flight=st.integers(1, 7),
        selection=st.sampled_from(["greedy", "greedy", "importance", "pairwise"]),
        initialise=st.sampled_from(["zero_shot", "both"]),
        max_children=st.integers(1, 4),
        scale=st.sampled_from([1.0, 100.0]),
        exploration=st.sampled_from([0.0, 1.0, 5.0]),
        leaf_visits=st.sampled_from(["judged", "ancestor", "judgements"]),
        root_score=st.sampled_from(["own_visits", "constant", "no_bonus"]),
        q_memory=st.sampled_from(["own_q", "assigned", "leaves"]),
        expanded=st.sampled_from(["either", "both"]),
        judge_root=st.sampled_from(["at_start", "when_selected"]),
        log_form=st.sampled_from(["code", "paper"]),
    ),
    spread=st.sampled_from([0, 1, 100]),
    period=st.integers(3, 30),
    seed=st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
@pytest.mark.covers("S2.3")
def test_a_choice_knows_every_open_answer_and_greedy_takes_the_first_of_the_highest_scores(
    config: MCTSrConfig, spread: int, period: int, seed: int
) -> None:
    """Against a scan of all, whatever came in whatever order and whatever failed."""

    class Checked(AnswerTree):
        def choose(self, rng: Draws, *, shown: int) -> list[tuple[MCTSrAnswer, float]]:
            found, before = self.open_answers(), self.candidates()
            chosen = super().choose(rng, shown=shown)
            scores = [self.score(answer) for answer in found]
            if found and config.selection == "greedy":
                assert chosen[0] == (found[scores.index(max(scores))], max(scores))
            if found and config.selection != "greedy":
                assert [part.tolist() for part in before] == [[answer.number for answer in found], scores]
                assert all(score == self.score(answer) for answer, score in chosen)
            return chosen

    strategy = MCTSr(config, np.random.default_rng(0))
    strategy.answers = Checked(config)
    trip = Journey(
        strategy,
        AnswersWorld(),
        delivery="eager",
        order=random.Random(seed),
        judge=lambda tree, command: [float(tree.node_seed(command.nodes[0]) % (2 * spread + 1) - spread)],
        fails=lambda command_id: "engine_error" if command_id % period == period - 1 else None,
    ).run()
    assert trip.driver.is_finished
    assert all(answer.num_refining == 0 for answer in strategy.answers.answers)
    assert len(asked(trip)) <= 4 + 4 * config.max_rollouts


@pytest.mark.parametrize("selection", ["greedy", "importance", "pairwise"])
@pytest.mark.parametrize("in_flight", [1, 3, 16])
def test_no_answer_has_more_children_than_it_may(selection: str, in_flight: int) -> None:
    config = MCTSrConfig(selection=selection, in_flight=in_flight, max_rollouts=40, max_children=2)  # type: ignore[arg-type]
    trip = played(config, judge=seeded_grades, order=random.Random(2), delivery="eager")
    assert max(len(answer.children) for answer in answers(trip).answers) <= 2
    assert actions(trip).count("rewrite") == 40


def test_visits_are_one_more_than_the_rollouts_through_an_answer() -> None:
    trip = played(replace(GREEDY, max_rollouts=30), judge=seeded_grades)
    tree = answers(trip)

    def size(number: int) -> int:
        return 1 + sum(size(child) for child in tree.answers[number].children)

    assert tree.visits == [size(number) for number in range(len(tree))]


def test_a_failed_rollout_costs_itself_and_counts_as_a_visit() -> None:
    trip = played(
        replace(GREEDY, max_rollouts=3),
        judge=lambda tree, command: [50.0],
        fails=lambda command_id: "engine_error" if command_id in (3, 4) else None,
    )
    assert actions(trip).count("critique") == 3
    assert answers(trip).visits[0] == 4
    assert len(answers(trip)) == 2


def test_an_answer_nobody_could_judge_is_no_answer() -> None:
    trip = played(
        replace(GREEDY, max_rollouts=4),
        judge=lambda tree, command: [None if command.nodes[0] > 1 else 10.0],
    )
    assert [candidate.node for candidate in trip.driver.strategy.candidates(trip.tree)] == [1]
    assert actions(trip).count("rewrite") == 4


def test_a_judge_that_never_answers_ends_nothing_but_rollouts() -> None:
    trip = played(replace(GREEDY, max_rollouts=5), judge=lambda tree, command: [None])
    assert actions(trip).count("critique") == 5
    assert actions(trip).count("rewrite") == 0
    assert list(trip.driver.strategy.candidates(trip.tree)) == []


def test_as_published_a_failed_judgement_ends_the_search() -> None:
    trip = played(replace(AS_PUBLISHED, selection="greedy"), judge=lambda tree, command: [None])
    assert actions(trip) == ["policy", "judge", "critique"]
    assert [candidate.score for candidate in trip.driver.strategy.candidates(trip.tree)] == [0.0]


def test_an_answer_grown_before_the_budget_ended_is_still_judged() -> None:
    trip = played(
        replace(GREEDY, max_rollouts=8, in_flight=2),
        judge=seeded_grades,
        fails=lambda command_id: "budget" if command_id == 5 else None,
    )
    assert actions(trip)[:8] == ["policy", "judge", "judge", "critique", "judge", "critique", "rewrite", "judge"]
    assert len(actions(trip)) == 8
    assert len(answers(trip)) == 2


def test_a_parent_does_not_win_by_what_was_made_of_it() -> None:
    grades = {1: 10.0, 3: 90.0}
    trip = played(replace(GREEDY, max_rollouts=1), judge=lambda tree, command: [grades[command.nodes[0]]])
    assert [(c.node, c.score) for c in trip.driver.strategy.candidates(trip.tree)] == [(1, 10.0), (3, 90.0)]
    published = replace(AS_PUBLISHED, selection="greedy", max_rollouts=1)
    trip = played(published, judge=lambda tree, command: [grades[command.nodes[0]]])
    assert [(c.node, c.score) for c in trip.driver.strategy.candidates(trip.tree)] == [(1, 50.0), (3, 90.0)]


def test_where_nothing_can_be_chosen_the_published_search_ends_and_says_where() -> None:
    strategy = MCTSr(replace(AS_PUBLISHED, selection="pairwise"), ListDraws([0.5]))
    trip = Journey(strategy, AnswersWorld()).run()
    assert strategy.stuck_at == 0
    assert trip.tree.num_leaves == 1


def test_as_published_the_newest_leaf_always_wins() -> None:
    trip = played(replace(AS_PUBLISHED, selection="greedy", max_rollouts=12), judge=seeded_grades)
    assert [answer.parent for answer in answers(trip).answers] == [NONE, *range(12)]


def test_mathblackbox_begins_twice_and_scores_by_its_own_rule() -> None:
    trip = played(replace(MATHBLACKBOX, max_rollouts=6), judge=seeded_grades)
    tree = answers(trip)
    assert [answer.parent for answer in tree.answers[:2]] == [NONE, NONE]
    assert all(tree.visits[answer.number] == len(answer.samples) for answer in tree.answers)


@pytest.mark.parametrize(("ties", "number"), [("created", 3), ("breadth_first", 4)])
def test_of_equal_scores_the_first_wins_breadth_first_or_by_age(ties: str, number: int) -> None:
    tree = AnswerTree(varied(MATHBLACKBOX, exploration=0.0, ties=ties))
    for node, (parent, grade) in enumerate([(NONE, 0.0), (NONE, 0.0), (0, 0.0), (2, 9.0), (1, 9.0)], 1):
        tree.add(node, parent, grade)
    tree.back_up(tree.answers[1])
    ((best, score), *_) = tree.choose(ListDraws(), shown=2)
    assert (best.number, score) == (number, 9.0)


def oracle(tree: Tree, command: Judge) -> Sequence[float | None]:
    return [float(tree.action(command.nodes[0]) == "rewrite")] if command.judge == "exact" else [50.0]


def test_a_judge_may_stop_the_search_and_one_that_knows_the_answer_must_be_declared() -> None:
    trip = played(replace(GREEDY, stop_judge="exact", max_rollouts=9), judge=oracle)
    assert actions(trip).count("rewrite") == 1
    assert len(answers(trip)) == 2

    class Knowing(AnswersWorld):
        """Its policy's answers have been scored by a judge that saw the truth."""

        def steps(self, tree: Tree, start: object) -> list:  # type: ignore[type-arg]
            (step,) = super().steps(tree, start)  # type: ignore[arg-type]
            return [replace(step, scores=(Score("exact", 1.0, is_oracle=True),))]

    def search(config: MCTSrConfig) -> Journey:
        return Journey(MCTSr(config, np.random.default_rng(0)), Knowing(), judge=lambda tree, command: [50.0]).run()

    with pytest.raises(ContractError, match="which saw the answer"):
        search(replace(GREEDY, stop_judge="exact"))
    trip = search(replace(GREEDY, stop_judge="exact", oracle="declared"))
    assert actions(trip) == ["policy", "judge"]


def test_the_viewer_is_told_the_chosen_one_first() -> None:
    trip = played(replace(GREEDY, max_rollouts=12), judge=seeded_grades)
    decisions = [command.why for command in asked(trip) if isinstance(command, Grow) and command.action == "critique"]
    assert all(1 <= len(why) <= 8 for why in decisions)
    assert all(why[0].score == max(candidate.score for candidate in why) for why in decisions)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_rollouts": 0},
        {"in_flight": 0},
        {"max_children": 0},
        {"eps": 0.0},
        {"scale": 0.0},
        {"exploration": float("nan")},
        {"reward_limit": float("inf")},
        {"judge": "reward"},
        {"judge": ""},
        {"stop_judge": "reward"},
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        varied(MCTSrConfig(), **fields)  # type: ignore[arg-type]


def said(turn: ScriptedTurn) -> str:
    if turn.context.endswith("critique:"):
        return "too small"
    return "<answer>3</answer>" if turn.context.endswith("rewrite:") else "<answer>2</answer>"


REFINE = {
    "policy": ActionConfig(),
    "dummy": ActionConfig(text="I don't know.", role="probe"),
    "critique": ActionConfig(edge="quotes", role="critique", template="{question} said {0}. critique:"),
    "rewrite": ActionConfig(edge="quotes", template="{question} said {0}, but {-1}. rewrite:"),
}


def begun_with_dummy(**fields: Any) -> Tree:
    options = {"initialise": "dummy", "judge": "right", "max_rollouts": 2}
    strategy = StrategyConfig(name="mctsr", options=options)
    return grown(None, Scripted(said), actions=REFINE, strategy=strategy, **fields).trees[0]


def test_a_fixed_answer_is_written_without_a_request_and_quoted_like_any_other() -> None:
    tree = begun_with_dummy()
    dummy = tree.children(ROOT)[0]
    assert tree.branch(dummy).transcript == "I don't know."
    assert [s.origin for s in tree.segments(dummy)] == ["given"]
    assert (tree.stop(dummy), tree.num_sampled(dummy)) == ("answer", 0)
    critique = tree.derived(dummy)[0]
    assert "said I don't know.. critique:" in tree.branch(critique).text
    spent = tree.spent()
    assert spent["probe"].decode == spent["probe"].engine_calls == spent["probe"].turns == 0
    assert [tree.reward(n) for n in tree.derived(critique)] == [1.0]


def test_a_fixed_answer_needs_no_room_in_the_budget_of_tokens() -> None:
    tree = begun_with_dummy(limits=Limits(decode=1))
    assert tree.branch(tree.children(ROOT)[0]).transcript == "I don't know."
    assert sum(spend.decode for spend in tree.spent().values()) <= 1


def test_an_action_that_writes_asks_for_nothing_else() -> None:
    with pytest.raises(ConfigError, match="writes its text"):
        ActionConfig(text="no", max_tokens=3)
    with pytest.raises(ConfigError, match="writes its text"):
        ActionConfig(text="no", edge="quotes", template="{question}")
