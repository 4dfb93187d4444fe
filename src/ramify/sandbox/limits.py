"""Limits: how much of the machine foreign code may use."""

from dataclasses import dataclass, fields

from ramify.core.errors import ConfigError

MIN_MEMORY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Limits of one step with everything it starts, unless a field says otherwise."""

    memory_bytes: int = 1 << 30
    """Memory that it may add to its starting state (volcengine/verl, sandbox fusion: 1024 MB)."""
    max_output_bytes: int = 1 << 20
    """Size of the kept output: its head and tail."""
    killed_output_bytes: int = 64 << 20
    """A step that prints more is killed."""
    max_files_bytes: int = 64 << 20
    """Total size of the files that a state keeps, and maximum size of one file."""
    max_files: int = 4096
    max_processes: int = 32
    """Threads included."""
    max_nodes: int = 64
    """Waiting states in one sandbox. Beyond this number the least recently used are dropped, and replayed when
    needed."""
    max_descriptors: int = 128

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{field.name} = {value!r}: a whole number of 1 or more is needed")
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise ConfigError(f"memory_bytes = {self.memory_bytes!r}: Python needs at least {MIN_MEMORY_BYTES}")
        if self.killed_output_bytes < self.max_output_bytes:
            less = f"killed_output_bytes = {self.killed_output_bytes!r}, max_output_bytes = {self.max_output_bytes!r}"
            raise ConfigError(f"{less}: a step must be allowed to print at least as much as is kept")

    @property
    def box_bytes(self) -> int:
        """Total size of all files of all states: at least two copies of the largest state must fit."""
        return 4 * self.max_files_bytes

    @property
    def box_files(self) -> int:
        """Number of files and folders of all states together: every state has three folders of its own."""
        return 4 * self.max_files + 4 * self.max_nodes

    @property
    def all_processes(self) -> int:
        """Processes of one sandbox at the same time: all states, and some steps at their limit."""
        return self.max_nodes + 4 * self.max_processes
