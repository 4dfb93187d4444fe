"""World process: the side of a process that holds a world. `processes` is the other side.

A zygote is started once per environment, imports what worlds need, and forks a process for each episode. A fork of an
episode is a `fork` of its process, so everything is copied: also the heap of C libraries and global generators. Open
files, pipes and sockets of a world stay shared, and its threads are not copied: such a world replays instead.

- A copy is forked twice, so the zygote becomes its parent too (`PR_SET_CHILD_SUBREAPER`). When the zygote is gone for
  any reason, the kernel kills the processes of all episodes; the zygote ends with its parent (`PR_SET_PDEATHSIG`).
- Each process leads its own group. When it has ended, the zygote kills the rest of the group before it reaps the
  process, so no signal can hit a stranger with the same id. Programs that left the group end with the zygote.
- Before each step, the global generators of `random` and numpy start from the step's seed.
- What a world prints goes nowhere. Linux only.

Messages are a length and a pickle. This keeps faults apart. It is no wall against hostile code.
"""

import contextlib
import gc
import importlib.util
import os
import pickle
import random
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ramify.core.environment import AgentTurn, Observation
from ramify.edge import stdio_guard
from ramify.edge.error_text import error_text

if TYPE_CHECKING:
    from ramify.core.problem import Problem
    from ramify.environments.blocking import BlockingEnvironment, World

LENGTH: Final = struct.Struct("<Q")
NO_CORE_BYTES: Final = 1
"""The only limit that also stops a core dump that the kernel would pipe to a program of the host (core(5))."""


@dataclass(frozen=True, slots=True)
class WorldLimits:
    """Limits of each process."""

    max_memory_bytes: int
    """Address space beyond what the zygote holds."""
    max_file_bytes: int
    """Largest file that it can write."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Where a zygote finds the code of an environment."""

    main: Mapping[str, Any]
    """Search path and main file, as `multiprocessing` passes them on."""
    files: Mapping[str, str]
    """Module -> file, of modules that cannot be found by name."""


@dataclass(frozen=True, slots=True)
class WorldFault:
    """What went wrong in a call, in words."""

    text: str


@dataclass(frozen=True, slots=True)
class WorldEnded:
    """A process that has ended."""

    pid: int
    code: int
    """As in `subprocess`: a negative code is the number of a signal."""


def framed(message: object) -> bytes:
    """A message as bytes. Raises whatever the pickling raises."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def stepped(world: "World", turn: AgentTurn, seed: int) -> tuple[Observation, str | None]:
    """A step with the seconds it took, and the digest of the state behind it."""
    began = time.perf_counter()
    observed = world.step(turn, seed)
    took_s = time.perf_counter() - began
    if isinstance(observed, Observation) and observed.took_s is None:
        observed = replace(observed, took_s=took_s)
    return observed, world.digest()


def seed_globals(seed: int) -> None:
    """Start the global generators of this process from `seed`."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed([seed & 0xFFFF_FFFF, seed >> 32])


def main() -> NoReturn:
    """The zygote: arguments are the descriptor of its line and the pid of its parent."""
    line, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    stdio_guard.die_with(parent, signal.SIGKILL)
    stdio_guard.prctl(stdio_guard.PR_SET_CHILD_SUBREAPER, 1)
    _silence()
    (origins, limits, pickled), _ = _received(line)
    try:
        environment = _made(origins, pickled)
        environment.prepare()
        seed_globals(0)  # numpy imports its generators when they are first used.
    except BaseException as error:  # noqa: BLE001 - boundary to the code of an environment
        line.sendall(framed(WorldFault(error_text(error))))
        os._exit(1)
    gc.collect()
    gc.freeze()  # Else each collection in a fork would copy the pages of everything that was imported.
    line.sendall(framed(None))
    _Zygote(line, parent, environment, limits).serve()


def _made(origins: Origins, pickled: bytes) -> "BlockingEnvironment":
    from multiprocessing import spawn

    spawn.prepare(dict(origins.main))
    for name, path in origins.files.items():
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return pickle.loads(pickled)


class _Zygote:
    """Forks processes for as long as its parent holds the line, and reports which have ended."""

    def __init__(
        self, line: socket.socket, parent: int, environment: "BlockingEnvironment", limits: WorldLimits
    ) -> None:
        self._line = line
        self._environment = environment
        self._limits = limits
        self._woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)
        self._parent = parent
        stdio_guard.die_with(parent, signal.SIGTERM)

    def serve(self) -> NoReturn:
        try:
            while True:
                ready, _, _ = select.select([self._line, self._woken], [], [])
                if self._woken in ready:
                    if signal.SIGTERM in os.read(self._woken, 4096):
                        break
                    self._reap()
                if self._line in ready:
                    self._fork()
        except (OSError, EOFError):
            pass
        finally:
            self._kill_all()
            os._exit(0)

    def _fork(self) -> None:
        _, (channel,) = _received(self._line)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._woken)
            self._line.close()
            _limit(self._limits)
            _Host(self._environment, socket.socket(fileno=channel), os.getppid()).serve()
        os.close(channel)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(found.si_pid, signal.SIGKILL)
                _, status = os.waitpid(found.si_pid, 0)
                self._line.sendall(framed(WorldEnded(found.si_pid, os.waitstatus_to_exitcode(status))))

    def _kill_all(self) -> None:
        """Kill all descendants, also those that left their group, and wait until none is left."""
        with contextlib.suppress(ChildProcessError):
            while True:
                stdio_guard.kill(list(stdio_guard.descendants(os.getpid())))
                os.waitpid(-1, 0)


class _Host:
    """The process of one episode: it answers one request after another until the other side hangs up."""

    def __init__(self, environment: "BlockingEnvironment", channel: socket.socket, zygote: int) -> None:
        self._environment = environment
        self._channel = channel
        self._zygote = zygote
        self._world: World | None = None

    def serve(self) -> NoReturn:
        try:
            while True:
                (name, *arguments), descriptors = _received(self._channel)
                if (answer := self._answer(name, arguments, descriptors)) is not None:
                    self._channel.sendall(answer)
        except (OSError, EOFError):
            os._exit(0)
        finally:
            os._exit(1)

    def _answer(self, name: str, arguments: list[Any], descriptors: list[int]) -> bytes | None:
        """The framed answer; None = this is a copy, which has nothing to answer. Boundary to the code of a world:
        `exit()` and running out of memory are faults too."""
        try:
            match name:
                case "adopt":
                    return framed(self._adopt())
                case "open":
                    return framed(self._open(*arguments))
                case "step":
                    return framed(self._step(*arguments))
                case "score":
                    return framed(self._score(*arguments))
                case "fork":
                    return framed(None) if self._fork(*descriptors) else None
                case _:
                    return framed(self._close())
        except MemoryError:
            return framed(WorldFault("MemoryError: it needed more than max_memory_bytes"))
        except BaseException as error:  # noqa: BLE001 - the boundary
            return framed(WorldFault(error_text(error)))

    def _adopt(self) -> int:
        """The first request of a new process; returns its pid."""
        os.setpgid(0, 0)
        stdio_guard.die_with(self._zygote, signal.SIGKILL)
        return os.getpid()

    def _open(self, problem: "Problem", seed: int) -> str | None:
        seed_globals(seed)
        self._world = self._environment.world(problem, seed)
        return self._world.digest()

    def _step(self, turn: AgentTurn, seed: int) -> tuple[Observation, str | None]:
        assert self._world is not None
        seed_globals(seed)
        return stepped(self._world, turn, seed)

    def _score(self, said: str, problem: "Problem") -> Any:
        assert self._world is not None
        seed_globals(0)
        return self._world.score(said, problem)

    def _close(self) -> None:
        if self._world is not None:
            self._world.close()

    def _fork(self, channel: int) -> bool:
        """Go on as two processes; False = this is the copy. It serves `channel`, where the zygote is its parent by the
        time that the first request comes."""
        first = os.fork()
        if first == 0:
            try:
                second = os.fork()
            except OSError:
                os._exit(1)
            if second:
                os._exit(0)
            self._channel.close()
            self._channel = socket.socket(fileno=channel)
            return False
        os.close(channel)
        _, status = os.waitpid(first, 0)
        if status:
            raise OSError("the system refused another process")
        return True


def _received(line: socket.socket) -> tuple[Any, list[int]]:
    """The next message and the descriptors that came with it. Raises `EOFError` at the end."""
    header, descriptors, _, _ = socket.recv_fds(line, LENGTH.size, 1)
    while len(header) < LENGTH.size:
        header += _some(line, LENGTH.size - len(header))
    body = bytearray()
    (length,) = LENGTH.unpack(header)
    while len(body) < length:
        body += _some(line, min(length - len(body), 1 << 20))
    return pickle.loads(body), descriptors


def _some(line: socket.socket, most: int) -> bytes:
    if not (read := line.recv(most)):
        raise EOFError
    return read


def _limit(limits: WorldLimits) -> None:
    with open("/proc/self/statm", encoding="ascii") as sizes:  # noqa: PTH123 - pathlib is slower
        there = int(sizes.read().split()[0]) * resource.getpagesize()
    memory = there + limits.max_memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.max_file_bytes, limits.max_file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (NO_CORE_BYTES, NO_CORE_BYTES))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123
        score.write("1000")  # The kernel kills worlds first when the machine runs out of memory.


def _silence() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
