"""Home: the places of servers on this machine: addresses, logs and processes."""

import contextlib
import tempfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ramify.core.errors import ConfigError, EngineError
from ramify.servers.ports import Address, Ports
from ramify.servers.process import Command, ServerProcess

MAX_LOGS: Final = 10
"""Number of logs kept of one server, each at most twice `stdio_guard.MAX_LOG_BYTES`. It covers all starts of a server
before it is given up, and some more. (kubelet: containerLogMaxFiles, 5.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The address and log folder of servers."""

    logs: Path
    """Folder of their logs."""
    host: str = "127.0.0.1"
    """Address they listen at."""
    port: int | None = None
    """None = any; a server that finds its port in use then moves to another one."""
    ports: tuple[int, ...] = ()
    """One port per server, in place of `port`."""

    def of(self, index: int) -> "Home":
        """The home of server `index`. With `port`, the first server gets `port` and the others the ports after it."""
        if self.ports:
            return replace(self, port=self.ports[index], ports=())
        return self if self.port is None else replace(self, port=self.port + index)


class Here:
    """Servers on this machine. `command` makes the command for an address; the servers are called NAME-INDEX."""

    def __init__(self, command: Callable[[Address], Command], *, home: Home, name: str = "server") -> None:
        self._command = command
        self._home = home
        self._name = name
        self._ports = Ports(home.host)

    def place(self, index: int) -> "PlaceHere":
        return PlaceHere(self._command, f"{self._name}-{index}", ports=self._ports, home=self._home.of(index))

    def close(self) -> None:
        self._ports.close()


class PlaceHere:
    """Where one server is on this machine."""

    def __init__(self, command: Callable[[Address], Command], name: str, *, ports: Ports, home: Home) -> None:
        self.name = name
        self.address = ports.address(home.port)
        self._command = command
        self._ports = ports
        self._is_fixed = home.port is not None
        self._logs = Logs(home.logs, name)

    async def start(self) -> ServerProcess:
        return await ServerProcess.started(self._command(self.address), log=self._logs.new())

    def move(self) -> bool:
        if not self._is_fixed:
            self.address = self._ports.moved(self.address)
        return not self._is_fixed


class Logs:
    """The logs of one server: one new file per start, NAME.NUMBER.log. The last `MAX_LOGS` are kept."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._files: deque[Path] = deque()
        self._num_files = 0

    def new(self) -> Path:
        """A new log file that no other pool uses, even in the same folder. Deletes the oldest of ours. Raises
        `EngineError` if none can be made."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            while True:
                self._num_files += 1
                log = self._folder / f"{self._name}.{self._num_files}.log"
                with contextlib.suppress(FileExistsError):
                    log.touch(exist_ok=False)
                    break
            self._files.append(log)
            while len(self._files) > MAX_LOGS:
                oldest = self._files.popleft()
                oldest.unlink(missing_ok=True)
                oldest.with_name(f"{oldest.name}.old").unlink(missing_ok=True)
        except OSError as error:
            raise EngineError("server_not_started", f"{self._name}: no log in {self._folder}: {error}") from error
        return log


def log_folder(named: str | Path | None) -> Path:
    """Absolute path of the folder for servers' logs; None = a new temporary folder. Raises `ConfigError` if it is a
    file, `EngineError` if no folder can be made."""
    if named is not None:
        if Path(named).is_file():
            raise ConfigError(f"logs = {str(named)!r} is a file; name a folder")
        return Path(named).resolve()
    try:
        return Path(tempfile.mkdtemp(prefix="ramify-servers-"))
    except OSError as error:
        raise EngineError("server_not_started", f"no folder for logs: {error}; name one") from error
