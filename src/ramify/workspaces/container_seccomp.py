"""ContainerSeccomp: podman's own list of allowed system calls, without what bubblewrap's filter refuses.

Podman's list lets a command make user namespaces, trace and keep keys. Docker's does not, and lies in its daemon, so
docker keeps it.
"""

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ramify.core.errors import ToolError
from ramify.sandbox.seccomp import ATTRIBUTE_WRITES, FAMILIES, FOR_SHELLS, FORBIDDEN_NAMESPACES
from ramify.sandbox.syscalls import REFUSED

EXAMINED: Final = ("clone", "clone3", "socket")


def narrowed(profile: Path) -> str:
    """A profile that allows what `profile` does and `sandbox/seccomp.py` does not refuse. Raises `ToolError`."""
    try:
        base = json.loads(profile.read_text())
    except (OSError, ValueError) as error:
        raise ToolError(
            "tool_gave_up", f"podman's list of system calls cannot be read: {error}; install containers-common"
        ) from error
    refused = [name for name in REFUSED if name not in {*FOR_SHELLS, *ATTRIBUTE_WRITES}]
    ours = {*refused, *ATTRIBUTE_WRITES, *EXAMINED}
    kept = [rule | {"names": [name for name in rule["names"] if name not in ours]} for rule in base["syscalls"]]
    rules = [
        _refusal(refused, errno.EPERM),
        _refusal(ATTRIBUTE_WRITES, errno.EOPNOTSUPP),
        _refusal(["clone3"], errno.ENOSYS),
        _allowed("clone", {"value": FORBIDDEN_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}),
        *(_allowed("socket", {"value": family, "valueTwo": 0, "op": "SCMP_CMP_EQ"}) for family in FAMILIES),
    ]
    return json.dumps(base | {"syscalls": [*(rule for rule in kept if rule["names"]), *rules]})


def _refusal(names: Sequence[str], code: int) -> dict[str, Any]:
    return {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": code}


def _allowed(name: str, argument: dict[str, Any]) -> dict[str, Any]:
    """A call that is allowed if its first argument is like this."""
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [argument | {"index": 0}]}
