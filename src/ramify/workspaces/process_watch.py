"""ProcessWatch: what a command uses of the machine while it runs, seen from the host.

It adds up all processes of the command's namespace, so many small ones are no way round a limit. Memory is resident
memory; if that is too much, the fair share is used. Disk is what lies in the draft, with files that are open and have
no name. Looking at a large tree takes longer, so it is done less often.
"""

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Final

from ramify.core.errors import ConfigError
from ramify.sandbox.processes import Processes
from ramify.workspaces.tree import TreeLimits, used

MIN_MEMORY_BYTES: Final = 16 << 20
FREE_BYTES: Final = 256 << 20
"""What a command must leave free on the disk of the workspaces."""
REST: Final = 5
"""Looking at files may take one part in this many of the time."""
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLimits:
    """How much of the machine one command may use, with everything that it starts."""

    cpu_s: float = 300.0
    """CPU time of all its processes together."""
    memory_bytes: int = 2 << 30
    max_processes: int = 256
    """Threads included."""
    disk_bytes: int = 4 << 30
    """Size of all files of a state, and of each file. A sparse file counts in full."""
    max_files: int = 200_000
    """Files and folders of a state."""
    max_output_bytes: int = 1 << 20
    """Size of the kept output: its head and tail."""
    killed_output_bytes: int = 64 << 20
    """A command that prints more is killed."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            is_number = isinstance(value, int | float) if each.name == "cpu_s" else isinstance(value, int)
            if not is_number or isinstance(value, bool) or not 1 <= value < 1 << 62:
                raise ConfigError(f"{each.name} = {value!r}: a number of 1 or more is needed")
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise ConfigError(f"memory_bytes = {self.memory_bytes!r}: a shell needs at least {MIN_MEMORY_BYTES}")

    @property
    def memory_fault(self) -> str:
        """What a model is told of a command that used too much memory."""
        return f"it used more than {self.memory_bytes // _MIB} MiB of memory"

    @property
    def of_tree(self) -> TreeLimits:
        return TreeLimits(max_bytes=self.disk_bytes, max_files=self.max_files)


class ProcessWatch:
    """The watch of one command. `pid` is the first process of its namespace, `files` the folder that it changes."""

    def __init__(self, pid: int, limits: CommandLimits, files: bytes) -> None:
        self._pid = pid
        self._limits = limits
        self._files = files
        self._procfs = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._processes = Processes(self._procfs, keeper=pid, has_namespace=False)
        self._files_at = 0.0
        """When to look at the files again, by the monotonic clock."""

    def fault(self) -> str:
        """Which limit is exceeded, as text for the model; empty = none."""
        pids = self._processes.pids()
        looks = [look for pid in (*pids, self._pid) if (look := self._processes.look(pid)) is not None]
        limits = self._limits
        if sum(look.num_threads for look in looks if not look.is_gone) > limits.max_processes + 1:
            return f"it ran more than {limits.max_processes} processes and threads at once"
        if sum(look.cpu_s for look in looks) > limits.cpu_s:
            return f"it used more than {limits.cpu_s:g} s of CPU time"
        if sum(look.rss_bytes for look in looks) > limits.memory_bytes:
            fair = [self._processes.fair_bytes(look.pid) for look in looks]
            own = sum(look.rss_bytes if part is None else part for look, part in zip(looks, fair, strict=True))
            if own > limits.memory_bytes:
                return limits.memory_fault
        return self._file_fault(pids)

    def close(self) -> None:
        self._processes.close()

    def _file_fault(self, pids: set[int]) -> str:
        now = time.monotonic()
        if now < self._files_at:
            return ""
        limits = self._limits
        free = os.statvfs(self._files)
        if free.f_bavail * free.f_frsize < FREE_BYTES:
            return "the disk is nearly full"
        num_files, num_bytes = used(self._files)
        if num_files > limits.max_files + 2:
            return f"it left more than {limits.max_files} files and folders"
        if num_bytes + self._nameless(pids) > limits.disk_bytes:
            return f"its files hold more than {limits.disk_bytes} bytes"
        took_s = time.monotonic() - now
        self._files_at = now + took_s * REST
        return ""

    def _nameless(self, pids: set[int]) -> int:
        """Bytes of open files without a name."""
        seen: dict[int, int] = {}
        for pid in pids:
            with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    with suppress(OSError):
                        found = entry.stat()
                        if not found.st_nlink and stat.S_ISREG(found.st_mode):
                            seen[found.st_ino] = found.st_blocks * 512
        return sum(seen.values())
