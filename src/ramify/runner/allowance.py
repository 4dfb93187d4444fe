"""Allowance: the most a command may use, so that the ledger can reserve it before the command starts."""

from collections.abc import Mapping
from dataclasses import dataclass

from ramify.core.action import ActionConfig
from ramify.core.command import Command, Grow, Judge, Tokens
from ramify.core.ledger import Spend
from ramify.core.tree import Place, Tree
from ramify.runner.config import GrowthConfig


@dataclass(frozen=True, slots=True)
class Allowance:
    """Worst cases of the commands of one run; call it with a tree, a command and its place."""

    config: GrowthConfig
    actions: Mapping[str, ActionConfig]
    num_leaf_judges: int
    max_word: int
    """Most tokens a growth of Tokens(n) may add to finish a stop word."""

    def __call__(self, tree: Tree, command: Command, place: Place | None) -> Spend:
        if isinstance(command, Judge):
            return Spend(judge_calls=len(command.nodes))
        if not isinstance(command, Grow) or place is None:
            return Spend()
        decode = self._decode(tree, command, place)
        is_chain = command.until == "end"
        calls = max(0, self.config.max_tool_calls - len(tree.branch(place.parent).tool_calls))
        return Spend(
            leaves=1,
            decode=decode,
            prefill_uncached=tree.length(place.parent) + self.config.max_response_tokens,
            turns=min(decode, self.config.max_turns or decode) if is_chain else 1,
            tool_calls=calls if is_chain else min(1, calls),
            judge_calls=self.num_leaf_judges,
        )

    def _decode(self, tree: Tree, command: Grow, place: Place) -> int:
        room = self.config.max_response_tokens
        if self.actions[command.action].edge == "continues":
            room -= tree.length(place.parent) - tree.num_prompt(place.parent)
        if isinstance(command.until, Tokens):
            room = min(room, command.until.n + self.max_word)
        return max(room, 1)
