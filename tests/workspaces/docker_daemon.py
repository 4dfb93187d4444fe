"""A Docker daemon of these tests' own, without a network: `dockerd` of Debian's package, as root."""

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

OPTIONS = ("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false")
START_S = 60.0


@cache
def start() -> None:
    """Start the daemon, once in this process, and name it to all clients; it ends with this process."""
    home = Path(tempfile.mkdtemp())
    address = f"unix://{home}/socket"
    folders = (f"--data-root={home}/data", f"--exec-root={home}/exec", f"--pidfile={home}/pid")
    with (home / "log").open("wb") as log:
        daemon = subprocess.Popen(["dockerd", "-H", address, *folders, *OPTIONS], stdout=log, stderr=log)
    atexit.register(_end, daemon, home)
    os.environ["DOCKER_HOST"] = address
    deadline = time.monotonic() + START_S
    while subprocess.run(["docker", "info"], check=False, capture_output=True).returncode:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"dockerd does not run here: {(home / 'log').read_text()[-2000:]}")
        time.sleep(0.2)


def _end(daemon: "subprocess.Popen[bytes]", home: Path) -> None:
    daemon.terminate()
    daemon.wait()
    shutil.rmtree(home, ignore_errors=True)
