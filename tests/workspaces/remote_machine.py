"""A remote machine for tests: an sshd of this process on a loopback port, with keys of its own."""

import atexit
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HOSTS = ("box1", "box2", "gone", "stranger")
"""Names in the client's configuration. Two are this machine; nothing listens at `gone`; the key of `stranger` is not
known."""
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 100
PrintMotd no
"""
CLIENT = """
Host *
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  StrictHostKeyChecking yes
  UserKnownHostsFile {folder}/known
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""
ALIASES = """
Host gone
  Port {closed}
Host stranger
  UserKnownHostsFile /dev/null
"""


@cache
def client() -> str:
    """The ssh command that knows `HOSTS`. Starts sshd when first asked; skips the test where there is none."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    sshd = shutil.which("sshd", path=path)
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("needs sshd and ssh: apt-get install openssh-server openssh-client")
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{name}"], check=True)
    port, closed = free_port(), free_port()
    said = {"folder": folder, "port": port, "closed": closed, "user": getpass.getuser()}
    Path(folder, "server").write_text(SERVER.format(**said))
    Path(folder, "client").write_text(ALIASES.format(**said) + CLIENT.format(**said))
    key = Path(folder, "host.pub").read_text()
    Path(folder, "known").write_text(f"[127.0.0.1]:{port} {key}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = subprocess.Popen([sshd, "-D", "-E", f"{folder}/log", "-f", f"{folder}/server"])
    atexit.register(server.wait)
    atexit.register(server.kill)
    while True:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return f"ssh -F {folder}/client"
        assert server.poll() is None, Path(folder, "log").read_text()
        time.sleep(0.02)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def options(*hosts: str) -> dict[str, Any]:
    """Options of the tool for machines of `HOSTS`."""
    return {"hosts": hosts or ("box1",), "ssh": client(), "remote_python": sys.executable}


@contextmanager
def without_sshd() -> Iterator[dict[str, Any]]:
    """Options of the tool for a remote side that this machine starts as its own child, in place of ssh."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "ssh")
        program.write_text('#!/bin/bash\nfor last; do :; done\nexec bash -c "$last"\n')
        program.chmod(0o755)
        yield {"hosts": ("box",), "ssh": str(program), "remote_python": sys.executable}
