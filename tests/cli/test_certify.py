"""`ramify certify`: what it prints, its JSON, its exit codes."""

import pytest
from tests.cli.commands import ramify

from ramify.cli.certify import lines
from ramify.experiments.certify import Certificate

SMALL = ("certify", "--strategy", "planned", "--set", "strategy.options.children=[2,1.5]", "--problem", "ragged")


@pytest.mark.slow
def test_a_verdict_and_what_was_tested_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, *SMALL, "--expect", "exact")
    assert said.code == 0
    assert said.out.splitlines() == [
        "strategy planned, credit auto, sum_over_constant",
        "ragged  exact",
        "        1,024 trees (all), fractions, forks at the prompt and behind 1",
        "the rows say that they are exact if they are summed and divided by a constant",
    ]


def test_another_verdict_than_expected_is_exit_code_5(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--strategy", "chains", "--set", "strategy.options.n=2", "--problem", "ragged")
    said = ramify(capsys, "certify", *arguments, "--credit", "leaf_mean", "--expect", "exact")
    assert said.code == 5
    assert "ragged  scaled by 1/2" in said.out
    assert ramify(capsys, "certify", *arguments, "--credit", "leaf_mean", "--expect", "scaled").code == 0
    assert ramify(capsys, "certify", *arguments, "--credit", "leaf_grpo", "--expect", "scaled").code == 5


@pytest.mark.slow
def test_a_trainer_that_divides_by_rows_is_named_with_the_worst_token(capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, *SMALL, "--trainer", "mean_over_rows")
    assert "ragged  biased (worst at prefix '', token 0: 1.25 times the gradient)" in said.out


@pytest.mark.slow
def test_json_has_every_component(capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, *SMALL, "--json")
    (found,) = said.json["certificates"]
    assert (found["verdict"], found["is_rational"], found["num_trees"]) == ("exact", True, 1024)
    assert len(found["components"]) == 10
    assert all(each["estimate"] == each["expected"] for each in found["components"])
    assert found["forks"] == {"": [2], "1": [2]}


def test_rows_that_say_they_are_exact_and_are_not_are_pointed_out() -> None:
    certificate = Certificate(
        strategy="mine",
        credit="auto",
        problem="ragged",
        reduction="sum_over_constant",
        batch="one",
        verdict="biased",
        forks={},
    )
    assert list(lines([certificate]))[-1] == (
        "they are wrong on ragged: give the strategy a post_hoc_reason, or repair its shares"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--credit", "leaf_grp"), "unknown credit 'leaf_grp'; did you mean 'leaf_grpo' or 'leaf_loo'? Or name a file"),
        (("--problem", "rag"), "unknown decision problem 'rag'"),
        (("--problem", "none.py:problem"), "none.py"),
        (("--trainer", "sum"), "unknown reduction 'sum'"),
        (("--strategy", "chain"), "unknown strategy 'chain'; did you mean 'chains'"),
    ],
)
def test_a_wrong_name_is_said(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = ramify(capsys, "certify", *arguments)
    assert said.code == 2
    assert message in said.err
