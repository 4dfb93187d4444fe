"""Allowance: the most a command may use. The ledger reserves it before the command starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ramify.config.run_config import GrowthConfig
from ramify.core.action import ActionConfig
from ramify.core.branch import MESSAGE_TOKENS
from ramify.core.command import Command, Grow, Judge, Tokens
from ramify.core.errors import ContractError, nearest
from ramify.core.judge import SamplingJudge
from ramify.core.ledger import Spend
from ramify.core.prices import UNPRICED, Prices
from ramify.core.tree import Place, Tree
from ramify.runner.sampler import most_tool_tokens


@dataclass(frozen=True, slots=True)
class Allowance:
    """Worst cases for the commands of one run. Call it with a tree, a command and its place."""

    config: GrowthConfig
    actions: Mapping[str, ActionConfig]
    num_leaf_judges: int
    max_word: int
    """Most tokens that a growth of Tokens(n) may add after n to finish a stop word or a character."""
    asking: Mapping[str, SamplingJudge] = field(default_factory=dict[str, SamplingJudge])
    """Judges that ask models, by name."""
    whole_turns: frozenset[str] = frozenset()
    """Actions whose engine produces whole turns: they need no extra tokens to finish a word."""
    prices: Mapping[str, Prices] = field(default_factory=dict[str, Prices])
    """By engine name."""
    num_tool_tokens: int = 0
    """Most tokens of a request that describe tools."""
    world_action: str | None = None
    """The action by which an environment asks its model; None = it asks none."""
    takes_turns: bool = False
    """Whether an environment answers every turn: then every turn may be a call."""

    def __call__(self, tree: Tree, command: Command, place: Place | None) -> Spend:
        if isinstance(command, Judge):
            return self._judgement(tree, command)
        if not isinstance(command, Grow) or place is None:
            return Spend()
        if command.action not in self.actions:
            raise ContractError(
                f"{command!r}: no such action; {nearest(command.action, self.actions)} The configuration adds "
                f"one: actions.{command.action}.role = 'policy', or 'probe' for paths that make no rows"
            )
        if self.actions[command.action].text:
            return Spend(leaves=1, judge_calls=self.num_leaf_judges)
        is_fresh = self.actions[command.action].edge == "quotes"
        decode = self._decode(tree, command, place, is_fresh=is_fresh)
        num_made = 0 if is_fresh else tree.num_tool_calls(place.parent)
        calls = max(0, self.config.max_tool_calls - num_made)
        if self.takes_turns:
            calls = self.config.max_turns or decode
        is_step = command.until == "step"
        # A turn computes at most its whole context, and a further turn follows each call except the last.
        num_turns = 1 if is_step else calls + 2
        turns = 1 if is_step else self._turns(command.action, decode)
        own = Spend(
            leaves=1,
            decode=decode,
            prefill_uncached=num_turns * (tree.length(place.parent) + self.config.max_response_tokens),
            picodollars=self._growth_cost(tree, command, place, decode=decode, num_turns=num_turns),
            engine_calls=min(decode, self._requests(command, decode, num_turns=num_turns)),
            turns=turns,
            tool_calls=min(1, calls) if is_step else calls,
            judge_calls=self.num_leaf_judges + (0 if self.config.prune_judge is None else turns),
        )
        return own.add(self._replies(tree, place, own.tool_calls))

    def _replies(self, tree: Tree, place: Place, num_steps: int) -> Spend:
        """What an environment's model may use: one reply a step. More of them end the path by its budget."""
        if self.world_action is None:
            return Spend()
        room = self.config.max_response_tokens
        decode = num_steps * (self.actions[self.world_action].max_tokens or room)
        context = tree.length(place.parent) + room
        return Spend(
            decode=decode,
            prefill_uncached=num_steps * context,
            engine_calls=num_steps,
            turns=num_steps,
            picodollars=self._prices_of(self.world_action).most(num_steps * context, decode)
            if self._prices_of(self.world_action).is_known
            else 0,
        )

    def _judgement(self, tree: Tree, command: Judge) -> Spend:
        """A judge that samples may need all of its replies, and each request may compute its whole context."""
        spend, judge = Spend(judge_calls=len(command.nodes)), self.asking.get(command.judge)
        if judge is None:
            return spend
        action, sitting = self.actions[judge.action], judge.sitting(len(command.nodes))
        spend.turns = sitting.num_dialogues * sitting.num_replies
        spend.decode = spend.turns * (action.max_tokens or self.config.max_response_tokens)
        spend.engine_calls = min(spend.decode, spend.turns * self._requests_a_step(judge.action, is_cut=True))
        quoted = sum(_num_quoted(tree, node, judge.action) for node in command.nodes)
        spend.prefill_uncached = spend.turns * (quoted + _num_written(action)) + sitting.num_replies * spend.decode
        prices = self._prices_of(judge.action)
        if prices.is_known:
            quoted = sum(self._quoted(tree, node, judge.action) for node in command.nodes)
            spend.picodollars = prices.most(spend.turns * quoted + sitting.num_replies * spend.decode, spend.decode)
        return spend

    def _growth_cost(self, tree: Tree, command: Grow, place: Place, *, decode: int, num_turns: int) -> int:
        """Most picodollars of a growth with this many turns."""
        prices = self._prices_of(command.action)
        if not prices.is_known:
            return 0
        is_fresh = self.actions[command.action].edge == "quotes"
        parent = place.parent
        context = self._quoted(tree, parent, command.action) if is_fresh else tree.branch(parent).most_tokens
        context += self.num_tool_tokens + most_tool_tokens((), self.actions[command.action].fields)
        return prices.most(num_turns * (context + self.config.max_response_tokens), decode)

    def _prices_of(self, action: str) -> Prices:
        return self.prices.get(self.actions[action].engine, UNPRICED)

    def _quoted(self, tree: Tree, node: int, action: str) -> int:
        """Most tokens of a fresh context that quotes everything on the way to `node`."""
        template, contexts = _num_written(self.actions[action]) + MESSAGE_TOKENS, tree.contexts(node)
        if action in tree.codecs:
            return template + sum(len(branch.text.encode()) for branch in contexts)
        return template + sum(branch.most_tokens for branch in contexts)

    def _requests(self, command: Grow, decode: int, *, num_turns: int) -> int:
        """Most requests of a growth with this many turns; a turn may take several steps."""
        max_tokens = self.actions[command.action].max_tokens
        if self.config.max_turns is not None:
            num_turns = min(num_turns, self.config.max_turns)
        if max_tokens is not None and command.until != "step":
            num_turns += decode // max_tokens
        is_cut = max_tokens is not None or isinstance(command.until, Tokens)
        return num_turns * self._requests_a_step(command.action, is_cut=is_cut)

    def _requests_a_step(self, action: str, *, is_cut: bool) -> int:
        """Requests per step: one, and one for each token of an unfinished word if the step is cut at a number of
        tokens."""
        return 1 + self.max_word if is_cut and action not in self.whole_turns else 1

    def _turns(self, action: str, decode: int) -> int:
        """Most steps of a whole path. A step cut at its action's own limit does not end the model's turn."""
        is_cut = self.actions[action].max_tokens is not None
        return decode if is_cut else min(decode, self.config.max_turns or decode)

    def _decode(self, tree: Tree, command: Grow, place: Place, *, is_fresh: bool) -> int:
        room = self.config.max_response_tokens
        if not is_fresh:
            room -= _num_response_tokens(tree, place.parent)
        if isinstance(command.until, Tokens):
            room = min(room, command.until.n + self.max_word)
        return max(room, 1)


def _num_written(action: ActionConfig) -> int:
    """Most tokens of what an action writes into a fresh context besides what it quotes: its bytes."""
    return len(f"{action.system or ''}{action.template}".encode())


def _num_quoted(tree: Tree, node: int, action: str) -> int:
    """Most tokens of a node in the tokenizer of a judge's action: its bytes, if that is not the run's tokenizer."""
    return len(tree.branch(node).text.encode()) if action in tree.codecs else tree.length(node)


def _num_response_tokens(tree: Tree, node: int) -> int:
    """Tokens after the opening context of a node's branch."""
    if tree.codec.is_exact:
        return tree.length(node) - tree.num_prompt(node)
    return tree.branch(node).num_response_tokens
