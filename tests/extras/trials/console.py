"""Console: runs commands with the `ramify` that is installed beside this interpreter."""

import subprocess
import sys
from pathlib import Path
from typing import Final

RAMIFY: Final = str(Path(sys.executable).with_name("ramify"))
TIMEOUT_S: Final = 300.0


def ramify(*arguments: object) -> str:
    """What a command writes to stdout. If it fails, the trial ends with all that it wrote."""
    command = [RAMIFY, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
