"""Walls: attacks every wall of a workspace once, before a run starts, and names the one that does not hold."""

import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final

from ramify.core.errors import ToolError
from ramify.workspaces.command import StopFlag, run
from ramify.workspaces.shell_order import ShellOrder
from ramify.workspaces.system import ENVIRONMENT

if TYPE_CHECKING:
    from ramify.workspaces.workspaces import Workspaces

FAULTS: Final[Mapping[str, str]] = {
    "rights": "a command has capabilities on this machine",
    "file": "a command reads the files of this process",
    "root": "a command writes outside /w and /tmp",
    "environment": "a command sees the variables of this process",
    "processes": "a command sees the processes of this machine",
    "network": "a command reaches the network of this machine",
    "namespaces": "a command can make namespaces: the filter of system calls does not hold",
}
ATTACKS: Final = r"""
grep -q '^CapEff:[^0]*0000000000000000$' /proc/self/status || echo rights
test -e {file} && echo file
(echo > /usr/{name}) 2>/dev/null && echo root
(echo > /{name}) 2>/dev/null && echo root
for name in {names}; do env | grep -q "^$name=" && echo environment; done
test "$(ls -d /proc/[0-9]* | wc -l)" -gt {max_processes} && echo processes
{network}
(unshare -U true) 2>/dev/null && echo namespaces
true
"""
NETWORK: Final = r"""
(test -n "${BASH_VERSION-}" && timeout 2 bash -c 'exec 3<>/dev/tcp/127.0.0.1/PORT') 2>/dev/null && echo network
"""
ATTACK_S: Final = 20.0
MAX_PROCESSES: Final = 10
"""More than the attack itself has."""
MAX_NAMES: Final = 20
SET_INSIDE: Final = frozenset({*ENVIRONMENT, "_", "OLDPWD", "PWD", "SHLVL"})


def attack(workspaces: "Workspaces", image: str = "") -> None:
    """Attack the walls with the programs of an image, or of this machine. Raises `ToolError` that names every one that
    fell."""
    back_end, rules = workspaces.back_end, workspaces.rules(image)
    state = back_end.start(None)
    try:
        draft = back_end.draft(state)
    finally:
        back_end.release(state)
    stop = StopFlag()
    name = f"ramify-wall-{secrets.token_hex(4)}"
    spot = workspaces.store.run / name
    try:
        spot.write_text("a file of the host")
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            port = server.getsockname()[1]
            network = NETWORK.replace("PORT", str(port)) if workspaces.tool.network == "none" else ""
            command = ATTACKS.format(
                file=spot, name=name, names=" ".join(_names()), network=network, max_processes=MAX_PROCESSES
            )
            order = ShellOrder(
                rules=rules,
                draft=draft,
                command=command,
                variables=rules.first,
                is_tmp_kept=True,
            )
            end = run(workspaces.starter, order, timeout_s=ATTACK_S, stop=stop)
    finally:
        stop.close()
        back_end.discard(draft)
        spot.unlink(missing_ok=True)
    words = end.output.decode(errors="replace").split()
    fallen = [FAULTS[word] for word in FAULTS if word in words]
    if fallen:
        raise ToolError("tool_gave_up", f"a wall of workspaces does not hold: {'; '.join(fallen)}")
    if end.ending != "ended" or end.exit_code != 0 or words:
        raise ToolError("tool_gave_up", f"the walls of workspaces cannot be tried: {end.ending}, {end.output!r}")


def _names() -> list[str]:
    """Variables of this process that no command should have."""
    return [name for name in os.environ if name.isidentifier() and name not in SET_INSIDE][:MAX_NAMES]
