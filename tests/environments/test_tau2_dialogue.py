"""What does not need tau2: its messages as text, ids that a path decides, and what is said without the package."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from ramify.core.errors import ConfigError
from ramify.environments.tau2 import Tau2, needs_judge
from ramify.environments.tau2_dialogue import FIRST_WORDS, NOW, NOW_OR_CALL, call_in, opening_words, user_prompt
from ramify.environments.tau2_episode import IDS


@dataclass
class Message:
    role: str
    content: str | None = None
    tool_calls: Any = None
    requestor: str = "assistant"


@dataclass
class Call:
    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


TALK = [
    Message("assistant", "Hello."),
    Message("user", "My order is late."),
    Message("assistant", tool_calls=[Call("look_up", {"order": 7})]),
    Message("tool", "on its way"),
    Message("assistant", "Is your phone on?"),
    Message("user", tool_calls=[Call("look_at", {"thing": "phone"})]),
    Message("tool", "it is off", requestor="user"),
]


def test_the_customer_sees_its_own_calls_and_not_the_agent_s() -> None:
    told = user_prompt("Be kind.", [{"name": "look_at"}], TALK)
    assert told.startswith("Be kind.") and told.endswith(NOW_OR_CALL) and '{"name": "look_at"}' in told
    dialogue = told.partition("so far:\n\n")[2].partition("\n\nWrite")[0]
    assert dialogue.split("\n\n") == [
        "agent: Hello.",
        "you: My order is late.",
        "agent: Is your phone on?",
        'you: CALL look_at {"thing": "phone"}',
        "result: it is off",
    ]


def test_a_customer_without_functions_is_told_of_none() -> None:
    assert user_prompt("Be kind.", [], TALK[:2]).endswith(NOW) and "CALL" not in user_prompt("Be kind.", [], TALK[:2])


def test_the_agent_sees_its_own_calls_and_not_the_customer_s() -> None:
    assert opening_words(TALK).split("\n\n")[1:] == [
        "you: Hello.",
        "customer: My order is late.",
        'you: CALL look_up {"order": 7}',
        "result: on its way",
        "you: Is your phone on?",
    ]


def test_words_of_the_agent_at_the_end_are_left_to_it() -> None:
    assert opening_words(TALK[:4]) == opening_words([*TALK[:4], Message("assistant", "It is on its way.")])
    assert opening_words(TALK[:1]) == opening_words([]) == FIRST_WORDS


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("I would like a CALL back.", None),
        ("CALL look {}", ("look", {})),
        ('Well.\n CALL look {"at":\n {"a": [1]}}\nbye', ("look", {"at": {"a": [1]}})),
        ("CALL look", ("look", {})),
        ("CALL look {broken", ("look", {})),
        ("CALL look [1]", ("look", {})),
        ("CALL one {}\nCALL two {}", ("one", {})),
        ("CALL look " + "[" * 100_000, ("look", {})),
    ],
)
def test_a_call_is_a_line(said: str, call: Any) -> None:
    assert call_in(said) == call


def test_ids_of_a_step_depend_on_its_seed_alone() -> None:
    with IDS.drawn_by(1):
        one = [IDS.uuid4(), IDS.uuid4()]
    with IDS.drawn_by(1):
        assert [IDS.uuid4(), IDS.uuid4()] == one
    with IDS.drawn_by(2):
        assert IDS.uuid4() not in one
    assert IDS.uuid4() != IDS.uuid4()


def test_a_reward_needs_a_judge_if_it_counts_assertions_in_words() -> None:
    db, words = SimpleNamespace(value="DB"), SimpleNamespace(value="NL_ASSERTION")

    def needs(basis: Any, assertions: Any) -> bool:
        criteria = SimpleNamespace(reward_basis=basis, nl_assertions=assertions)
        return needs_judge(SimpleNamespace(evaluation_criteria=criteria))

    assert needs([db, words], ["the agent was kind"])
    assert not needs([db], ["the agent was kind"]) and not needs([db, words], None) and not needs([db, words], [])
    assert not needs_judge(SimpleNamespace(evaluation_criteria=None))


def test_without_the_package_the_way_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tau2.registry", None)
    for use in (lambda: Tau2(domain="mock").check_start(), lambda: Tau2(domain="mock").problems("train", 1, 0)):
        with pytest.raises(ConfigError, match=r"(?s)Python 3.12, pip install a checkout of .*set TAU2_DATA_DIR"):
            use()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"domain": ""}, "needs a domain: --env tau2:mock"),
        ({"domain": "mock", "judged": "guess"}, "judged = 'guess'; it is 'refuse' or 'skip'"),
        ({"domain": "mock", "max_steps": 0}, "max_steps = 0; it is at least 1"),
        ({"domain": "mock", "max_errors": 0}, "max_errors = 0; it is at least 1"),
    ],
)
def test_bad_options_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Tau2(**options)
