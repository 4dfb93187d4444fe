"""What a strategy declares is checked before the first token."""

from dataclasses import dataclass
from typing import Any

import pytest

from ramify import ROOT, Grow, Phase, rollout_sync
from ramify.config.configure import resolve
from ramify.core.errors import ConfigError
from ramify.runner.run_strategy import RunStrategy


@dataclass(frozen=True)
class Config:
    pass


class OneChain:
    Config = Config
    measures: Any = frozenset[str]()
    is_order_free: Any = True
    post_hoc_reason: Any = ""

    def __init__(self, config, rng) -> None:
        self.num_asked = self.num_told = 0

    def ask(self, tree):
        first, self.num_asked = not self.num_asked, 1
        return [Grow(ROOT)] if first else []

    def tell(self, tree, outcome) -> None:
        self.num_told += 1

    def is_done(self, tree) -> bool:
        return self.num_told == 1

    def phase(self, tree) -> Phase:
        return Phase("collection")


class Search(OneChain):
    vote: Any = "best"

    def candidates(self, tree):
        return []


@pytest.mark.parametrize(
    ("kind", "declared", "said"),
    [
        (OneChain, {"measures": "entropy"}, "measures = 'entropy': a frozenset of names is needed"),
        (OneChain, {"measures": ["entropy"]}, "measures = \\['entropy'\\]: a frozenset of names is needed"),
        (OneChain, {"measures": frozenset({1})}, "measures = .*: a frozenset of names is needed"),
        (OneChain, {"is_order_free": "yes"}, "is_order_free = 'yes': True or False is needed"),
        (OneChain, {"post_hoc_reason": True}, "post_hoc_reason = True: a text is needed"),
        (OneChain, {"vote": "best"}, "it has vote alone: a search has both vote and candidates"),
        (Search, {"vote": "bets"}, "vote = 'bets': one of 'best', 'first', 'majority', 'weighted' is needed"),
        (Search, {"vote": None}, "vote = None: one of 'best'"),
    ],
)
def test_what_a_strategy_declares_wrongly_is_refused_before_the_start(
    kind: type, declared: dict[str, Any], said: str
) -> None:
    wrong = type("Wrong", (kind,), declared)
    with pytest.raises(ConfigError, match=f"Wrong.*: {said}"):
        rollout_sync(strategy=wrong, engine__name="scripted", prompts=1)


@pytest.mark.parametrize("kind", [OneChain, Search])
def test_what_it_declares_rightly_is_taken(kind: type) -> None:
    done = rollout_sync(strategy=kind, engine__name="scripted", prompts=1)
    assert done.report.leaves == 1


def test_a_part_may_be_given_by_its_name() -> None:
    done = rollout_sync(engine="scripted", task="countdown", strategy="best_of_n", prompts=1)
    assert (done.config.engine.name, done.config.strategy.name) == ("scripted", "best_of_n")


def test_settings_beside_a_config_are_refused() -> None:
    config = resolve(flags={"engine.name": "scripted", "prompts": 1}).config
    with pytest.raises(ConfigError, match="config and limits__decode are both given"):
        rollout_sync(config=config, limits__decode=3)


def test_a_strategy_that_is_not_built_in_is_driven_twice() -> None:
    asked: list[int] = []

    class Noted(OneChain):
        def ask(self, tree):
            asked.append(len(tree))
            return super().ask(tree)

    rollout_sync(prompts=1, strategy=Noted, engine="scripted")
    assert asked == [1, 1]
    assert RunStrategy.of(resolve().config).is_built_in
