"""Limits: how much of the machine foreign code may use."""

from dataclasses import dataclass, fields

from ramify.core.errors import ConfigError

MIN_MEMORY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Of one step with all it starts, where nothing else is said."""

    memory_bytes: int = 1 << 30
    """What it adds to the state it began with (volcengine/verl, sandbox fusion: 1024 MB)."""
    max_output_bytes: int = 1 << 20
    """Kept of what it prints: the head and the tail."""
    killed_output_bytes: int = 64 << 20
    """A step that prints more is killed."""
    max_files_bytes: int = 64 << 20
    """Of the files a state keeps, and of one file."""
    max_files: int = 4096
    max_processes: int = 32
    """Threads count."""
    max_nodes: int = 64
    """States that wait in one sandbox; the least recently used beyond it are dropped, and replayed when needed."""
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
        """Of all files of all states together: at the least two copies of the largest one must fit."""
        return 4 * self.max_files_bytes

    @property
    def box_files(self) -> int:
        """Files and folders of all states together: every state has three folders of its own."""
        return 4 * self.max_files + 4 * self.max_nodes

    @property
    def all_processes(self) -> int:
        """In one sandbox at once: all states, and some steps at their limit."""
        return self.max_nodes + 4 * self.max_processes
