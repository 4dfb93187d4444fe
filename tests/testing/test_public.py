"""`ramify.testing` has every name it lists, and costs nothing before one is used."""

import subprocess
import sys

import ramify.testing


def test_every_public_name_can_be_had() -> None:
    missing = [name for name in ramify.testing.__all__ if not hasattr(ramify.testing, name)]
    assert not missing
    assert set(ramify.testing.__all__) == set(dir(ramify.testing))


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, ramify.testing; print(sorted({'asyncio', 'numpy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
