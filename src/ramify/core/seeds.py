"""Seeds: every random choice of a tree follows from the run's seed and the place in the tree.

A child's seed is a hash of its parent's seed, the token position it continues from, and its index among the children
requested there. It never depends on an id, a clock or an arrival order. So the same seeds give the same tree, no matter
what finishes first, and a turn that was killed is sampled again exactly.
"""

import hashlib
import struct


def _hash64(*parts: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(b"\0".join(parts), digest_size=8).digest(), "little")


def tree_seed(run_seed: int, uid: str) -> int:
    """Seed of the tree of problem `uid`: independent of the order of problems."""
    return _hash64(b"tree", str(run_seed).encode(), uid.encode("utf-8", errors="replace"))


def strategy_seed(seed: int) -> int:
    """Seed of the generator handed to the strategy of the tree whose seed is `seed`."""
    return _hash64(b"strategy", str(seed).encode())


def child_seed(parent_seed: int, position: int, index: int) -> int:
    """Seed of the `index`-th child requested at token `position` of a branch sampled under `parent_seed`."""
    return int.from_bytes(
        hashlib.blake2b(struct.pack("<QqQ", parent_seed, position, index), digest_size=8).digest(), "little"
    )


def coin(seed: int) -> float:
    """Uniform on [0, 1): decides random termination for the path whose next seed is `seed`."""
    return _hash64(b"coin", str(seed).encode()) / 2**64


def world_seed(seed: int) -> int:
    """Seed with which every episode of the tree whose seed is `seed` opens."""
    return _hash64(b"world", str(seed).encode())


def step_seed(seed: int, num_steps: int) -> int:
    """Seed of an environment's step after `num_steps` others. `seed` is the path's, or the tree's if branches share
    their noise."""
    return _hash64(b"step", str(seed).encode(), str(num_steps).encode())


def aside_seed(seed: int, number: int) -> int:
    """Seed of the `number`-th reply of an environment's model about the node whose seed is `seed`."""
    return _hash64(b"aside", str(seed).encode(), str(number).encode())


def judge_seed(seed: int, judge: str, attempt: int) -> int:
    """Seed of what a judge samples in its `attempt` on the node whose seed is `seed`."""
    return _hash64(b"judge", str(seed).encode(), judge.encode("utf-8", errors="replace"), str(attempt).encode())
