"""Placement: chooses the replica for each request. No asyncio, no clock, no engine: equal calls give equal seats.

`PrefixPlacement` remembers which replica has computed which prefix, in whole blocks. Each block has one key, for
everything up to its end (`block_keys.py`). For each key it stores the replicas that hold the block, as the bits of one
number. So a binary search finds the longest prefix held anywhere, whatever the number of replicas. The memory for each
replica is as large as its own cache of keys and values, and drops the least recently used blocks.

The rule: a request goes to the replica that holds the most of its context, unless that replica is full (`Load.limit`).
Then it goes to the best of the others, which holds the context from then on. The best is the one that holds the most,
then the one with the fewest requests in flight, then the first in an order that depends on the tree, so that ties do
not all go to the first replica. A prefix that several trees share (a preamble) does not count: a request that finds no
more than that goes to the least loaded replica, so the first requests of trees spread out. A context counts as computed
as soon as its request is placed. So siblings that are sent at once follow the first of them, and their context is
computed once.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from ramify.core.errors import ConfigError
from ramify.core.segment import Ids_T
from ramify.engines.fleet.block_keys import BlockKeys

PlacementName = Literal["prefix", "round_robin"]

BLOCK_SIZE: Final = 64
"""Tokens per block: four of the engines' own blocks (vllm-project/vllm: block_size 16)."""
CACHE_TOKENS: Final = 1_000_000
"""Tokens of keys and values that a replica holds: nine tenths of 80 GB, minus 15 GB of weights, at 57 kB per token (the
server of `testing/simulated_server.py`)."""
MAX_IN_FLIGHT: Final = 256
"""vllm-project/vllm:vllm/engine/arg_utils.py: max_num_seqs on cards below 70 GB."""
MAX_OVER_MEAN: Final = 1.5
"""sgl-project/sglang, router: balance_rel_threshold."""
SPARE: Final = 16
"""Requests that a replica may have above `MAX_OVER_MEAN` times the mean; measured (`bench/placement.py`)."""


class Load:
    """Requests in flight on each replica, and which replicas take new ones. Mutable; its owner updates it."""

    def __init__(self, num_replicas: int, *, max_in_flight: int = MAX_IN_FLIGHT, spare: int = SPARE) -> None:
        if num_replicas < 1 or max_in_flight < 1 or spare < 1:
            raise ConfigError(
                f"{num_replicas} replicas, max_in_flight = {max_in_flight!r}, spare = {spare!r}: 1 or more"
            )
        self.in_flight = [0] * num_replicas
        self.takers = list(range(num_replicas))
        """Indices of the replicas that take new requests, in order."""
        self.mask = (1 << num_replicas) - 1
        """The same indices, as bits."""
        self._max_in_flight = max_in_flight
        self._spare = spare
        self._num_taken = 0
        """Requests in flight on `takers`."""

    def begin(self, replica: int) -> None:
        self.in_flight[replica] += 1
        self._num_taken += self.mask >> replica & 1

    def end(self, replica: int) -> None:
        self.in_flight[replica] -= 1
        self._num_taken -= self.mask >> replica & 1

    def admit(self, replica: int) -> None:
        """Let it take new requests. Calling it again does nothing."""
        self._set(self.mask | 1 << replica)

    def exclude(self, replica: int) -> None:
        """Give it no new requests; running ones continue. Calling it again does nothing."""
        self._set(self.mask & ~(1 << replica))

    @property
    def limit(self) -> float:
        """A replica with this many requests in flight is full: its capacity, or so far above the mean that others would
        be idle. At least one of `takers` is below it. If all have reached their capacity, only the mean counts, and
        requests queue."""
        limit = self._num_taken / len(self.takers) * MAX_OVER_MEAN + self._spare
        if self._num_taken < self._max_in_flight * len(self.takers):
            return min(limit, self._max_in_flight)
        return limit

    def _set(self, mask: int) -> None:
        self.mask, self.takers = mask, _bits(mask)
        self._num_taken = sum(self.in_flight[i] for i in self.takers)


class Seat(NamedTuple):
    """Where a request goes."""

    replica: int
    tree: int = 0
    keys: Sequence[int] = ()
    """Keys of the whole blocks of its context without the last token."""
    num_known: int = 0
    """Context tokens that the replica should already hold."""
    is_spill: bool = False
    """Whether a replica that holds more of the context was full."""


class Placement(Protocol):
    """A placement rule. `ids` are (T,) int32; `tree` is equal for the requests of one tree."""

    def seat(self, ids: Ids_T, tree: int, load: Load) -> Seat | None:
        """Where a request with the context `ids` goes; None = no replica takes requests. Mutates the rule's memory."""
        ...

    def computed(self, seat: Seat, ids: Ids_T) -> None:
        """The request of `seat` has ended: `ids` are its context and all its sampled tokens but the last."""
        ...

    def forget(self, replica: int) -> None:
        """The cache of `replica` was lost."""
        ...


class RoundRobin:
    """Uses the replicas in turn."""

    def __init__(self) -> None:
        self._last = -1

    def seat(self, ids: Ids_T, tree: int, load: Load) -> Seat | None:
        if not load.takers:
            return None
        self._last = next((i for i in load.takers if i > self._last), load.takers[0])
        return Seat(self._last)

    def computed(self, seat: Seat, ids: Ids_T) -> None:
        """Nothing is remembered."""

    def forget(self, replica: int) -> None:
        """Nothing is remembered."""


class PrefixPlacement:
    """Prefers the replica that holds most of the context. Memory: about 200 bytes per block and replica."""

    def __init__(self, num_replicas: int, *, block_size: int = BLOCK_SIZE, cache_tokens: int = CACHE_TOKENS) -> None:
        if block_size < 2 or block_size % 2 or cache_tokens < block_size:
            raise ConfigError(
                f"block_size = {block_size!r}, cache_tokens = {cache_tokens!r}: an even number of tokens, and at least "
                "one block of them"
            )
        self._keys = BlockKeys(block_size)
        self._block_size = block_size
        self._holders: dict[int, int] = {}
        """Key -> replicas that hold the block, as bits. A replica that holds a block holds all before it, except some
        that were used so long ago that they are about to be dropped."""
        self._owners: dict[int, int | None] = {}
        """Key -> the only tree that has used the block; None = several have. All blocks after one tree's block are that
        tree's."""
        self._caches = [_Cache(cache_tokens // block_size) for _ in range(num_replicas)]

    def seat(self, ids: Ids_T, tree: int, load: Load) -> Seat | None:
        if not load.takers:
            return None
        keys = self._keys.of(ids[:-1])
        depth, held = self._deepest(keys, -1)
        replica, is_spill = self._chosen(keys, depth, held, tree=tree, load=load)
        num_known = depth if held >> replica & 1 else self._deepest(keys[:depth], 1 << replica)[0]
        self._share(keys[:depth], tree)
        self._hold(replica, keys, tree)
        return Seat(replica, tree, keys, num_known * self._block_size, is_spill)

    def computed(self, seat: Seat, ids: Ids_T) -> None:
        new = self._keys.of(ids, after=seat.keys)
        if new:
            self._share(new[: self._deepest(new, -1)[0]], seat.tree)
            self._hold(seat.replica, new, seat.tree)

    def forget(self, replica: int) -> None:
        for key in self._caches[replica].clear():
            self._drop(key, replica)

    def _deepest(self, keys: Sequence[int], among: int) -> tuple[int, int]:
        """(most leading blocks that one of the replicas `among` holds, the replicas that hold them); (0, 0) = none."""
        holders = self._holders
        depth = bisect_left(keys, True, key=lambda key: not holders.get(key, 0) & among)
        return (depth, holders[keys[depth - 1]] & among) if depth else (0, 0)

    def _chosen(self, keys: Sequence[int], depth: int, held: int, *, tree: int, load: Load) -> tuple[int, bool]:
        """(replica, whether a better one was full). `held` are the replicas that hold the most."""
        limit, in_flight, others, is_spill = load.limit, load.in_flight, -1, False
        while depth and self._owners[keys[depth - 1]] == tree:
            takers = _bits(held & load.mask)
            roomy = [i for i in takers if in_flight[i] < limit]
            if roomy:
                return _least(roomy, tree, in_flight), is_spill
            is_spill, others = is_spill or bool(takers), others & ~held
            depth, held = self._deepest(keys[:depth], others)
        return _least(load.takers, tree, in_flight), is_spill

    def _share(self, held: Sequence[int], tree: int) -> None:
        """`tree` uses blocks that are held; blocks of another tree belong to no single tree from now on."""
        for key in reversed(held):
            if self._owners.get(key, tree) in (tree, None):
                return
            self._owners[key] = None

    def _hold(self, replica: int, keys: Sequence[int], tree: int) -> None:
        """`replica` has just used these blocks."""
        bit, cache = 1 << replica, self._caches[replica]
        for key in cache.use(keys):
            self._holders[key] = self._holders.get(key, 0) | bit
            self._owners.setdefault(key, tree)
        for key in cache.shrink():
            self._drop(key, replica)

    def _drop(self, key: int, replica: int) -> None:
        held = self._holders[key] & ~(1 << replica)
        if held:
            self._holders[key] = held
        else:
            del self._holders[key], self._owners[key]


class _Cache:
    """Blocks that one replica holds, ordered by their last use.

    Time is measured in eras of an eighth of the cache. A path that was already used in this era is not updated again,
    so the cost of a request depends only on its new part, not on its length.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._era_blocks = max(1, max_blocks // 8)
        self._num_added = 0
        self._eras: OrderedDict[int, int] = OrderedDict()
        """Key -> era of its last use; the least recently used first, and within a path the far end first."""

    def use(self, keys: Sequence[int]) -> list[int]:
        """A request uses the leading blocks of a context; returns those that were not held."""
        era, eras, new = self._num_added // self._era_blocks, self._eras, list[int]()
        for key in reversed(keys):
            last = eras.get(key)
            if last == era:
                break
            eras[key] = era
            if last is None:
                new.append(key)
            else:
                eras.move_to_end(key)
        self._num_added += len(new)
        return new

    def shrink(self) -> list[int]:
        """Drop and return the blocks above the limit."""
        return [self._eras.popitem(last=False)[0] for _ in range(len(self._eras) - self._max_blocks)]

    def clear(self) -> list[int]:
        """Drop and return everything."""
        keys = list(self._eras)
        self._eras.clear()
        return keys


def _bits(mask: int) -> list[int]:
    """Indices of the bits that are set, in order."""
    bits: list[int] = []
    while mask:
        lowest = mask & -mask
        bits.append(lowest.bit_length() - 1)
        mask ^= lowest
    return bits


def _least(replicas: Iterable[int], tree: int, in_flight: Sequence[int]) -> int:
    """The one with the fewest requests in flight; among equals, the first in an order that depends on the tree."""
    num_replicas = len(in_flight)
    return min(replicas, key=lambda i: in_flight[i] * num_replicas + (i - tree) % num_replicas)


def placement_of(name: PlacementName, num_replicas: int, *, block_size: int, cache_tokens: int) -> Placement:
    """The rule with this name."""
    match name:
        case "prefix":
            return PrefixPlacement(num_replicas, block_size=block_size, cache_tokens=cache_tokens)
        case "round_robin":
            return RoundRobin()
