"""The base of text games, and the digest of their states, without any library."""

import copy
import random
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from ramify.core.environment import AgentTurn, Observation
from ramify.core.errors import ConfigError
from ramify.environments.game_digest import game_digest
from ramify.environments.text_games import LAST_LINE, WHOLE_TURN, IllegalMove, TextGames, action_in


class Count:
    """Count to three."""

    opening = "the count is 0"
    moves = "Actions: up."

    def __init__(self) -> None:
        self.total = 0

    def play(self, action: str, seed: int) -> Observation:
        if action != "up":
            raise IllegalMove(f"{action!r} is no action. {self.moves}")
        self.total += 1
        return Observation(f"the count is {self.total}", reward=1.0, end="done" if self.total == 3 else None)

    def copy(self) -> "Count":
        return copy.copy(self)

    def digest(self) -> str | None:
        return str(self.total)

    def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Counting(TextGames):
    name: ClassVar[str] = "counting"
    library: ClassVar[str] = "json"

    def title(self) -> str:
        return "counting"

    def game(self, public: Mapping[str, Any]) -> Count:
        return Count()


@pytest.mark.parametrize(
    ("pattern", "text", "action"),
    [
        (LAST_LINE, "I think.\n  go left \n\n", "go left"),
        (LAST_LINE, "up", "up"),
        (WHOLE_TURN, " I say [5]\nand wait. ", "I say [5]\nand wait."),
        (r"<action>(.*?)</action>", "<action>a</action> no, <action>b</action>", "b"),
    ],
)
def test_the_last_match_is_the_action(pattern: str, text: str, action: str):
    assert action_in(text, re.compile(pattern), "") == action


def test_a_turn_without_an_action_is_told_the_legal_ones():
    world = Counting().world(Counting().problems("train", 1, 0)[0], 0)
    for text in ("", " \n\t", "sideways"):
        observed = world.step(AgentTurn(text), 0)
        assert observed.status == "error" and "Actions: up." in observed.text and observed.reward is None


def test_the_end_of_a_game_comes_before_the_limit_of_turns():
    (problem,) = Counting().problems("train", 1, 0)
    world = Counting(max_steps=3).world(problem, 0)
    assert [world.step(AgentTurn("up"), 0).end for _ in range(3)] == [None, None, "done"]
    world = Counting(max_steps=2).world(problem, 0)
    assert [world.step(AgentTurn("up"), 0).end for _ in range(2)] == [None, "truncated"]


def test_splits_and_runs_have_seeds_of_their_own():
    seeds = [
        {problem.public["seed"] for problem in Counting().problems(split, 100, seed)}
        for split in ("train", "heldout")
        for seed in (0, 1, 7, 10**9)
    ]
    assert sum(map(len, seeds)) == len(set.union(*seeds)) and all(0 <= seed < 2**31 for seed in set.union(*seeds))
    with pytest.raises(ConfigError, match="'train' and 'heldout'"):
        Counting().problems("test", 1, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"action_pattern": "("}, "action_pattern"),
        ({"action_pattern": "up"}, "no group"),
    ],
)
def test_options_that_cannot_work_are_config_errors(options: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        Counting(**options)


def test_a_missing_library_names_the_line_that_installs_it():
    @dataclass(frozen=True, kw_only=True)
    class Absent(Counting):
        library: ClassVar[str] = "no_such_library"

    with pytest.raises(ConfigError, match=r"pip install 'ramify\[counting\]'"):
        Absent().check_start()


class Held:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


@pytest.mark.parametrize(
    "held",
    [{"a": 1.5, "b": [1, (2, None)]}, np.arange(6).reshape(2, 3), {1, 9, 17, 33}, Held(x="y"), re.compile("a"), b"\0"],
)
def test_a_copy_has_the_same_digest(held: Any):
    assert game_digest(held) == game_digest(copy.deepcopy(held)) is not None


def test_sharing_and_the_order_of_sets_do_not_count():
    row = [1, 2]
    assert game_digest([row, row]) == game_digest([[1, 2], [1, 2]])
    forwards, backwards = set[int](), set[int]()
    for number in range(0, 80, 8):
        forwards.add(number)
        backwards.add(72 - number)
    assert game_digest(forwards) == game_digest(backwards)


def test_generators_locks_and_functions_do_not_count_and_numbers_do():
    one = Held(rng=np.random.default_rng(1), old=random.Random(1), lock=threading.Lock(), call=lambda: 1, n=1)
    two = Held(rng=np.random.default_rng(2), old=random.Random(2), lock=threading.Lock(), call=lambda: 2, n=1)
    assert game_digest(one) == game_digest(two) is not None
    two.n = 2  # pyright: ignore[reportAttributeAccessIssue]
    assert game_digest(one) != game_digest(two)


def test_what_holds_itself_has_no_digest():
    loop: list[Any] = []
    loop.append(loop)
    assert game_digest(loop) is None
