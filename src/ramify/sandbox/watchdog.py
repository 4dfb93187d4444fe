"""Watchdog: looks at running steps every 40 ms, and ends those that use more than they may.

Counts every process that descends from a step, orphans included; limits on one process alone would be no limit on many.
Memory is taken as what is resident; where that is too much, as its fair share, since what a child only inherited is not
there twice.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from ramify.sandbox.limits import SandboxLimits
from ramify.sandbox.processes import PAGE_BYTES, Look, Processes
from ramify.sandbox.running import Running

PERIOD_S: Final = 0.04
_MIB: Final = 1 << 20


async def watch(
    processes: Processes, running: Mapping[int, Running], waiting: Mapping[int, object], limits: SandboxLimits
) -> None:
    """Until no step runs. `running` and `waiting` are live: steps by the pid of their first process, and states."""
    while running:
        await asyncio.sleep(PERIOD_S)
        for pid, group in processes.groups(running, waiting).items():
            if pid in running:
                fault = _fault(group, processes, running[pid], limits)
                if fault:
                    running[pid].stop(fault)


def _fault(group: Sequence[Look], processes: Processes, step: Running, limits: SandboxLimits) -> str:
    """What a step uses too much of; empty = nothing."""
    if sum(look.num_threads for look in group) > limits.max_processes:
        return f"it ran more than {limits.max_processes} processes and threads at once"
    allowed = limits.memory_bytes + step.base_bytes
    if sum(look.rss_bytes for look in group) <= allowed:
        return ""
    used = sum(_own_bytes(look, processes) for look in group)
    return f"it used more than {limits.memory_bytes // _MIB} MiB of memory" if used > allowed else ""


def _own_bytes(look: Look, processes: Processes) -> int:
    """Its fair share, or where the kernel does not say the pages it got since it was forked."""
    fair = processes.fair_bytes(look.pid)
    return min(look.rss_bytes, look.num_faults * PAGE_BYTES) if fair is None else fair
