"""Sampler: asks an engine for one turn, within all limits."""

import asyncio
import json
import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from ramify.config.run_config import GrowthConfig
from ramify.core.action import ActionConfig
from ramify.core.command import Tokens
from ramify.core.engine import Engine, Generation, Request
from ramify.core.errors import EngineError
from ramify.core.prices import UNPRICED, Prices
from ramify.core.segment import Origination
from ramify.runner.work import Path, Turn, usage_of
from ramify.strategies.parts.entropy import STEP_ENTROPY

CONTEXT_FULL: Final = "context_full"
"""The stop word. Also the reason of an `EngineError` if an engine only learns it from its server."""
DEADLINE: Final = "deadline"
"""The stop word. Also the reason of an `EngineError` if an engine has no tokens when the request's deadline comes."""
NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})
ENTROPY_TOKENS = 20
"""The entropy of a step looks at its first tokens, this many (ARPO, AEPO and the offline plan)."""
ENTROPY_TOPK = 10
"""Top logprobs per token for the entropy (RUC-NLPIR/ARPO: vllm_rollout_with_tools.py)."""


class Sampler:
    """Samples turns for the actions of one run."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        actions: Mapping[str, ActionConfig],
        *,
        stops: tuple[str, ...],
        config: GrowthConfig,
        measures: frozenset[str],
        tools: tuple[Mapping[str, Any], ...] = (),
        prices: Mapping[str, Prices] | None = None,
    ) -> None:
        """`prices` maps an engine's name to its prices."""
        self._engines = engines
        self._actions = actions
        self._stops = stops
        self._config = config
        self._measures = measures
        self._tools = tools
        self._num_tool_tokens = {name: most_tool_tokens(tools, action.fields) for name, action in actions.items()}
        self._prices = {name: (prices or {}).get(action.engine, UNPRICED) for name, action in actions.items()}
        self._sources = {name: _source(engines[action.engine], action) for name, action in actions.items()}

    async def sample(self, turn: Turn, path: Path) -> None:
        """Sample until a stop word, the end of the sequence, a limit or the command's number of tokens. Mutates
        `turn`."""
        while not self._is_resolved(turn, path):
            room, word = self._room(turn, path)
            if room < 1:
                turn.stop = word
                return
            try:
                generation = await self._generate(turn, path, room)
            except EngineError as error:
                if error.reason not in (CONTEXT_FULL, DEADLINE):
                    raise
                turn.stop = error.reason
                return
            if len(generation.ids) or generation.message is not None:
                cost = self._cost(turn, path, generation)
                turn.hear(generation, self._sources[path.work.command.action], picodollars=cost)
            if generation.finish.kind == "abort":
                turn.stop = DEADLINE
                return
        if turn.finish is not None and turn.finish.kind == "length":
            # The step has all its tokens. If there is no room for another token, the path ends too.
            room, word = self._room(turn, path)
            turn.stop = word if room < 1 and word in ("length", CONTEXT_FULL, *self._whole_ends(path)) else None

    def context_length(self, action: str) -> int:
        """Most tokens that the engine of `action` can hold."""
        return self._engines[self._actions[action].engine].capabilities.context_length

    def can_continue_turn(self, action: str) -> bool:
        """Whether the engine of `action` can continue inside a turn. If not, it produces whole messages."""
        return self._engines[self._actions[action].engine].capabilities.can_continue_turn

    def _is_resolved(self, turn: Turn, path: Path) -> bool:
        """Whether sampling may stop here. A message is always complete, whatever ended it."""
        if turn.finish is not None and not self.can_continue_turn(path.work.command.action):
            return True
        max_tokens = self._actions[path.work.command.action].max_tokens
        return turn.is_resolved(self._stops, max_tokens=max_tokens, num_lacking=_num_lacking(turn, path))

    def _whole_ends(self, path: Path) -> tuple[str, ...]:
        """Limits that also end a path when they cut a turn: an engine of whole turns makes no later request that would
        meet them."""
        return () if self.can_continue_turn(path.work.command.action) else ("budget",)

    def _room(self, turn: Turn, path: Path) -> tuple[int, str]:
        """Most tokens of the next request, and the stop word to use if there are none."""
        rooms = [
            (self._config.max_response_tokens - turn.branch.num_response_tokens, "length"),
            (self.context_length(path.work.command.action) - turn.branch.num_tokens, CONTEXT_FULL),
        ]
        decode, prefill, turns = path.left("decode"), path.left("prefill_uncached"), path.left("turns")
        calls, money = path.left("engine_calls"), path.left("picodollars")
        if decode is not None:
            rooms.append((decode - turn.billed.decode, "budget"))
        if prefill is not None and prefill - turn.billed.prefill_uncached < turn.branch.num_tokens:
            rooms.append((0, "budget"))
        if money is not None:
            prices = self._prices[path.work.command.action]
            affordable = prices.num_affordable(money - turn.billed.picodollars, self._most_context(turn, path))
            rooms += [] if affordable is None else [(affordable, "budget")]
        if calls is not None and calls - turn.billed.engine_calls < 1:
            rooms.append((0, "budget"))
        if not turn.num_sampled and turns is not None and turns < 1:
            rooms.append((0, "budget"))
        max_turns = self._config.max_turns
        if not len(turn.branch.run) and max_turns is not None and turn.branch.num_turns >= max_turns:
            rooms.append((0, "turn_limit"))
        room, word = min(rooms, key=lambda r: r[0])
        num_lacking, max_tokens = _num_lacking(turn, path), self._actions[path.work.command.action].max_tokens
        room = room if num_lacking is None else min(room, max(1, num_lacking))
        # At least 1, also for a step that is full: 0 would end its path.
        return room if max_tokens is None else min(room, max(1, max_tokens - turn.num_sampled)), word

    def _most_context(self, turn: Turn, path: Path) -> int:
        """Most tokens that the next request may be billed for as its context."""
        return turn.branch.most_tokens + self._num_tool_tokens[path.work.command.action]

    def _cost(self, turn: Turn, path: Path, generation: Generation) -> int:
        """Cost in picodollars of the generation that continues `turn`. If its server does not report the prefill
        tokens, the highest possible cost."""
        if generation.picodollars is not None:
            return generation.picodollars
        prices, usage = self._prices[path.work.command.action], usage_of(generation)
        if usage.num_cached + usage.num_prefilled:
            return prices.cost(usage)
        return prices.most(self._most_context(turn, path), usage.num_billed)

    async def _generate(self, turn: Turn, path: Path, room: int) -> Generation:
        """One generation. Its finish is `abort` if the deadline cut it. Raises `EngineError`."""
        deadline = path.work.deadline
        if deadline is not None and deadline <= asyncio.get_running_loop().time():
            raise EngineError(DEADLINE, "it came before the request")
        engine = self._engines[self._actions[path.work.command.action].engine]
        wants_topk = self._measures_entropy(engine) and len(turn.topk) < ENTROPY_TOKENS
        request = Request(
            ids=turn.branch.ids,
            max_tokens=room,
            seed=turn.seed,
            stops=self._stops,
            num_run=len(turn.branch.run),
            sampling=self._actions[path.work.command.action].sampling,
            topk=ENTROPY_TOPK if wants_topk else 0,
            topk_tokens=ENTROPY_TOKENS - len(turn.topk),
            measures=engine.capabilities.measures & {"entropy"},
            request_id=request_id(path.work.tree, turn.seed),
            deadline=deadline,
            affinity=affinity(path.work.tree),
            messages=() if engine.capabilities.has_token_ids else turn.branch.messages,
            tools=() if engine.capabilities.has_token_ids else self._tools,
            fields=self._actions[path.work.command.action].fields,
        )
        generation = await engine.generate(request)
        if generation.finish.kind == "abort" and (deadline is None or deadline > asyncio.get_running_loop().time()):
            raise EngineError("aborted", "the engine gave the turn up", is_retryable=True)
        return generation

    def _measures_entropy(self, engine: Engine) -> bool:
        """Whether the steps of `engine` get their entropy: where it gives top logprobs, whatever the strategy. The
        built-in engine took 0.92 s of CPU with and 0.93 s without for 96 chains. An endpoint of messages may refuse
        the field, so it is asked only where the strategy reads entropies."""
        has_topk = engine.capabilities.max_topk > 0 and engine.capabilities.has_token_ids
        return has_topk or STEP_ENTROPY in self._measures


def _num_lacking(turn: Turn, path: Path) -> int | None:
    """Tokens that the command still lacks; None = it does not count tokens."""
    until = path.work.command.until
    return until.n - path.num_sampled - turn.num_sampled if isinstance(until, Tokens) else None


def most_tool_tokens(tools: Sequence[Mapping[str, Any]], fields: Mapping[str, Any] = NO_FIELDS) -> int:
    """Most tokens that these tools, and further fields, add to a request. They are not counted exactly: one token per
    byte."""
    return sum(len(json.dumps(each)) for each in (tools, fields) if each)


def request_id(tree: str, seed: int) -> str:
    """Id of the request with this seed in the tree of this name. It is unique in a run."""
    return f"{tree}/{seed:016x}"


def affinity(tree: str) -> int:
    """A number for the tree of this name, used for placement. It is the same in every process."""
    return zlib.crc32(tree.encode())


def _source(engine: Engine, action: ActionConfig) -> Origination:
    """The origin recorded for everything that `engine` samples for `action`."""
    return Origination(engine.capabilities.name, action.sampling, engine.capabilities.logprobs)
