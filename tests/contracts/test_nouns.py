"""Every noun of the core at work: strategies of about 20 lines, real parts, the scripted engine."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from tests.runner.parts import OneChain, Plan, Right, Small, grown, tip

from ramify.config.run_config import GrowthConfig, RunConfig
from ramify.core.action import ActionConfig
from ramify.core.branch import Branch
from ramify.core.command import Cancel, Close, Command, Failed, Fork, Grow, Grown, Judge, Tokens
from ramify.core.errors import ContractError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.segment import Sampling
from ramify.core.tree import ROOT, Tree
from ramify.runner.library import rollout
from ramify.tasks.hops import Hops
from ramify.tasks.hops_world import PERSON_RELATIONS
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.policies import chains
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import ScriptedTurn, Speech


@dataclass(frozen=True)
class Vote:
    """One call scores all leaves: the share of leaves that give the same answer."""

    name: str = "vote"
    is_oracle: bool = False

    async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
        texts = [b.run_text for b in branches]
        return [Verdict(texts.count(t) / len(texts), {"votes": texts.count(t)}) for t in texts]


class Pair(Plan):
    """Two actions at one place: the same fork, two ways of sampling."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        fork = Fork(2, "pair", shares=(0.25, 0.75))
        return [Grow(ROOT, fork=fork, action=name) for name in ("policy", "bold")] if not self.told else None


def test_two_actions_sample_by_their_own_laws() -> None:
    tree = grown(Pair, actions={"policy": ActionConfig(), "bold": ActionConfig(sampling=Sampling(1.5))}).trees[0]
    one, other = tree.stems()
    assert [tree.action(n) for n in (one, other)] == ["policy", "bold"]
    assert [tree.segments(n)[0].source.sampling.temperature for n in (one, other)] == [1.0, 1.5]
    assert tree.fork(one) is tree.fork(other)
    assert tree.forks[0].shares == (0.25, 0.75)
    assert not tree.forks[0].is_post_hoc


class Refine(Plan):
    """Answer, critique it in a fresh context, rewrite from both."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        match len(self.told):
            case 0:
                return [Grow(ROOT)]
            case 1 | 2:
                last = self.told[-1]
                assert isinstance(last, Grown)
                return [Grow(last.tip, action=("critique", "rewrite")[len(self.told) - 1])]
        return None


def refining(turn: ScriptedTurn) -> str:
    if turn.context.endswith("critique:"):
        return "too small"
    return "<answer>3</answer>" if turn.context.endswith("rewrite:") else "<answer>2</answer>"


REFINE = {
    "policy": ActionConfig(),
    "critique": ActionConfig(edge="quotes", role="critique", template="{question} said {0}. critique:"),
    "rewrite": ActionConfig(edge="quotes", template="{question} said {0}, but {1}. rewrite:"),
}


def test_a_critique_and_a_rewrite_quote_what_came_before() -> None:
    tree = grown(Refine, Scripted(refining), actions=REFINE).trees[0]
    (answer,) = tree.stems()
    (critique,) = tree.derived(answer)
    (rewrite,) = tree.derived(critique)
    assert tree.branch(critique).text == "make 3 from 1 2 said <answer>2</answer>. critique:too small"
    assert tree.branch(rewrite).text.endswith("<answer>2</answer>, but too small. rewrite:<answer>3</answer>")
    assert [tree.role(n) for n in (answer, critique, rewrite)] == ["policy", "critique", "policy"]
    assert tree.leaves() == [answer]
    assert set(tree.spent()) == {"policy", "critique"}


class VoteAtEnd(Plan):
    """Three chains, then one judgement of all three leaves."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        if not self.told:
            return [Grow(ROOT)] * 3
        return [Judge(tuple(tree.leaves()), "vote")] if len(self.told) == 3 else None


def test_a_vote_scores_several_nodes_at_once() -> None:
    task = Small(judges=(Vote(), Right()))
    tree = grown(VoteAtEnd, Scripted(chains(1)), task=task).trees[0]
    leaves = tree.leaves()
    assert all([s.judge for s in tree.scores(n)] == ["vote", "right", "vote"] for n in leaves)
    texts = [tree.branch(n).run_text for n in leaves]
    assert [tree.scores(n)[-1].value for n in leaves] == [texts.count(t) / 3 for t in texts]


class TokenFork(Plan):
    """Grow a chain, fork its first call before one of its tokens."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        if not self.told:
            return [Grow(ROOT)]
        last = self.told[0]
        assert isinstance(last, Grown)
        at = tree.length(ROOT) + len("<calc>1/")
        return [Grow(last.tip, at=at), Grow(last.tip, at=at)] if len(self.told) == 1 else None


def test_a_token_fork_splits_the_node_and_shares_its_head() -> None:
    tree = grown(TokenFork).trees[0]
    (head,) = tree.stems()
    assert tree.branch(head).transcript == "<calc>1/"
    assert len(tree.children(head)) == 3
    assert tree.forks[-1].is_post_hoc
    assert len(tree.leaves()) == 3
    assert all(tree.branch(leaf).transcript.startswith("<calc>1/") for leaf in tree.leaves())


class QueryFork(Plan):
    """Search once, then fork the chain behind the first word of its query."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        if not self.told:
            return [Grow(ROOT)]
        return [Grow(tip(self.told[0]), at=tree.length(ROOT) + len("<search> record"))] if len(self.told) == 1 else None


def searching(turn: ScriptedTurn) -> str:
    """Looks something up about whom the question names; the seed says what."""
    if "</information>" in turn.context:
        return "<answer> nobody</answer>"
    subject = turn.context.partition("what is ")[2].partition(" 's ")[0]
    return f"<search> record {subject} {PERSON_RELATIONS[turn.seed % len(PERSON_RELATIONS)]}</search>"


def test_a_fork_inside_a_query_shares_the_search_and_gets_an_observation_of_its_own() -> None:
    engine = Scripted(searching, capabilities=replace(SCRIPTED, context_length=4096))
    growth = GrowthConfig(max_response_tokens=2048)
    (tree,) = grown(QueryFork, engine, task=Hops(), prompts=1, seed=4, growth=growth).trees
    (trunk,) = tree.stems()
    assert tree.branch(trunk).transcript == "<search> record"
    calls = [tree.branch(leaf).tool_calls[0] for leaf in tree.leaves()]
    assert len({call.arguments for call in calls}) == 2
    assert all(call.result.startswith(call.arguments) for call in calls)


class Probe(Plan):
    """Look a few tokens ahead with a probe, then grow."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        if len(self.told) == 2:
            return None
        return [Grow(ROOT, until=Tokens(4), action="probe") if not self.told else Grow(ROOT)]


def test_a_probe_is_paid_but_is_no_leaf() -> None:
    tree = grown(Probe, actions={"policy": ActionConfig(), "probe": ActionConfig(role="probe")}).trees[0]
    assert len(tree.leaves()) == 1
    assert tree.spent()["probe"].decode == 4
    assert tree.spent()["policy"].leaves == 1


def two_calls(turn: ScriptedTurn) -> str:
    """A turn that follows from its context alone, so that growths of a few tokens go on where the last one ended."""
    done = turn.context.count("</result>")
    return f"<calc>{done + 1}/2</calc>" if done < 2 else "<answer>3</answer>"


@pytest.mark.parametrize("num_tokens", range(1, 24))
def test_growths_of_a_few_tokens_read_every_tag_wherever_they_are_cut(num_tokens: int) -> None:
    class Crumbs(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            tip = self.told[-1].tip if self.told and isinstance(self.told[-1], Grown) else ROOT
            return None if tree.is_ended(tip) else [Grow(tip, until=Tokens(num_tokens))]

    tree = grown(Crumbs, Scripted(two_calls)).trees[0]
    (leaf,) = tree.leaves()
    assert tree.stop(leaf) == "answer"
    assert [call.arguments for call in tree.branch(leaf).tool_calls] == ["1/2", "2/2"]


class CancelSlow(Plan):
    """Start two chains; when the first has ended, cancel the other."""

    def ask(self, tree: Tree) -> Sequence[Command]:
        if not self.num_asked:
            self.num_asked = 2
            return [Grow(ROOT), Grow(ROOT)]
        if len(self.told) == 1 and self.num_asked == 2:
            self.num_asked = 3
            return [Cancel(next(iter(tree.pending)))]
        return []

    def is_done(self, tree: Tree) -> bool:
        return len(self.told) == 3


def slow_second(turn: ScriptedTurn) -> Delay:
    return Delay(call_s=1.0 if turn.call == 0 else 60.0)


def test_a_cancelled_command_ends_once_and_is_no_leaf() -> None:
    result = grown(CancelSlow, Scripted(chains(0), delay=slow_second), delivery="eager")
    (tree,) = result.trees
    assert len(tree.leaves()) == 1
    assert tree.num_failed == 1
    assert result.report.seconds < 2
    assert not tree.pending


class CloseStem(Plan):
    """Take one step of two chains, close the first."""

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        match len(self.told):
            case 0:
                return [Grow(ROOT, until="step"), Grow(ROOT, until="step")]
            case 2:
                return [Close(tree.stems()[0], "enough"), Grow(tree.stems()[1])]
        return None


def test_a_closed_path_is_a_leaf_with_its_reason() -> None:
    tree = grown(CloseStem).trees[0]
    closed, other = tree.stems()
    assert tree.stop(closed) == "closed"
    assert tree.notes(closed)["closed"] == "enough"
    assert closed in tree.leaves()
    assert other not in tree.leaves()


def test_a_prune_rule_gives_a_path_up_behind_an_observation() -> None:
    tree = grown(OneChain, Scripted(chains(5)), growth=GrowthConfig(prune="task")).trees[0]
    (leaf,) = tree.leaves()
    assert tree.stop(leaf) == "closed"
    assert tree.notes(leaf)["closed"] == "two calls are enough"
    assert len(tree.branch(leaf).tool_calls) == 2


def test_growing_below_a_closed_node_is_a_fault_of_that_tree_alone() -> None:
    class Stubborn(CloseStem):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return [Grow(tree.stems()[0])] if len(self.told) == 4 else super().wanted(tree)

    result = grown(Stubborn)
    assert result.report.failed_trees == 1
    assert "ended with 'closed'" in result.report.unfinished["p"]
    assert ContractError.__name__ in result.report.unfinished["p"]


def test_a_judgement_that_fails_is_an_outcome() -> None:
    class Hopeful(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            match self.told:
                case []:
                    return [Grow(ROOT)]
                case [Grown(_, _, tip)]:
                    return [Judge((tip,), "moody", attempt=3)]
                case [_, outcome]:
                    assert isinstance(outcome, Failed)
            return None

    @dataclass(frozen=True)
    class Moody:
        name: str = "moody"
        is_oracle: bool = False

        async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
            raise ValueError("not today")

    tree = grown(Hopeful, task=Small(judges=(Right(), Moody()))).trees[0]
    (leaf,) = tree.leaves()
    assert tree.scores(leaf)[-1].value is None
    assert "not today" in tree.notes(leaf)["judge"]


def test_judges_that_are_no_oracles_never_see_the_secret() -> None:
    seen: list[object] = []

    @dataclass(frozen=True)
    class Curious:
        name: str
        is_oracle: bool

        async def judge(self, branches: Sequence[Branch], problem: Problem) -> list[Verdict]:
            seen.append(dict(problem.secret))
            return [Verdict(1.0) for _ in branches]

    secret = Problem("s", "q", secret={"gold": "42"})
    task = Small(judges=(Curious("plain", False), Curious("oracle", True)))
    result = run_virtual(
        rollout([secret], config=RunConfig(), strategy=OneChain, engine=Scripted(chains(1)), task=task)
    )
    assert seen == [{}, {"gold": "42"}]
    assert result.report.is_oracle
    assert [s.is_oracle for s in result.trees[0].scores(result.trees[0].leaves()[0])] == [False, True]


def test_speeches_with_planned_uncertainty_reach_the_measures() -> None:
    engine = Scripted(lambda turn: Speech("<answer>3</answer>", logprob=-0.5, entropy=0.25))
    tree = grown(OneChain, engine).trees[0]
    (segment,) = tree.segments(tree.leaves()[0])
    assert set(segment.measures["entropy"].tolist()) == {0.25}


def test_tokens_of_a_turn_that_failed_are_billed_and_never_a_leaf() -> None:
    class Crumb(Plan):
        """Stops inside a stop word, so that a second request has to finish it."""

        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            return None if self.told else [Grow(ROOT, until=Tokens(len("<calc>1/1</c")))]

    engine = Scripted(chains(1), faults=[Fault("error", calls=(1,), is_retryable=False)])
    result = grown(Crumb, engine, max_failed_share=1.0)
    (tree,) = result.trees
    (failed,) = tree.stems()
    assert tree.stop(failed) == "engine_error"
    assert tree.num_sampled(failed) == tree.spent()["policy"].decode == 12
    assert tree.leaves() == []
    assert result.rows() == []


def test_shares_that_do_not_sum_to_one_are_never_called_exact() -> None:
    class Greedy(Plan):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            fork = Fork(2, "greedy", shares=(0.9, 0.9))
            return None if self.told else [Grow(ROOT, fork=fork)] * 2

    rows = grown(Greedy, Scripted(chains(1))).rows()
    assert not any(row.is_unbiased for row in rows)
    assert any("sum to 1" in reason for reason in rows[0].reasons)
