"""Every extra of the package is installed alone, from the wheel, and its feature is tried; without it, the feature is
refused with the line that installs it.

A trial is a script of `trials/`, named after its extra. It runs in an empty folder with nothing installed but
`ramify[EXTRA]`. In an environment without any extra the same script must end with the refusal. `make test-extras`
needs a network, up to half an hour, and 2 GB of disk for the largest extra; each environment is deleted at once.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]
TRIALS: Final = Path(__file__).parent / "trials"
PROJECT: Final = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: Final[Sequence[str]] = [name for name in PROJECT["optional-dependencies"] if name != "dev"]
PINNED_APART: Final = {"inspect", "verifiers"}
"""Extras that need older versions of what others need: the extra itself names the version."""
NO_FEATURE: Final = {"docs"}
"""Extras that no command needs, so that none can refuse: the site is built from a checkout."""
ELSEWHERE: Final[Mapping[str, Sequence[str]]] = {
    "http": (
        "ramify rollout --engine openai --model m --base-url http://127.0.0.1:9/v1 --prompts 1",
        "ramify rollout --engine vllm --model $MODEL --base-url http://127.0.0.1:9 --prompts 1",
        "ramify index corpus.jsonl --out it && ramify retriever serve it",
    ),
    "hf": (
        "ramify noise --presets chains --problems 2",
        "ramify rollout --prompts 1 --set judges.steps.kind=process --set judges.steps.options.model=$MODEL",
        "python -c 'import pathlib, ramify.service.debug_files as d; d.load(pathlib.Path(\"batch.pt\"))'",
    ),
    "parquet": (
        "ramify rollout --data questions.parquet --engine scripted",
        "ramify index questions.parquet --out it",
    ),
    "plot": ("ramify eval --presets best_of_n --problems 2 --budget decode_tokens=64 --plot eval.svg",),
    "metrics": ("ramify rollout --prompts 1 --metrics-port 0",),
    "ray": ("python -c 'from ramify.service.remote import placed; placed(None, \"run\")'",),
}
"""Extra -> lines of a shell for further features that need it. `MODEL` is the folder of the built-in model."""
INSTALL_S: Final = 1800.0
TRIAL_S: Final = 600.0


def run(
    command: Sequence[str], there: Path, folder: Path, *, timeout_s: float = TRIAL_S
) -> subprocess.CompletedProcess[str]:
    """Run a command with the programs of `there`, in a folder; this checkout cannot be imported."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables["PATH"] = f"{there}{os.pathsep}{variables['PATH']}"
    variables["MODEL"] = str(REPOSITORY / "src" / "ramify" / "data" / "builtin")
    return subprocess.run(
        command, check=False, cwd=folder, env=variables, capture_output=True, text=True, timeout=timeout_s
    )


@contextmanager
def environment(requirement: str, *, is_pinned: bool = True) -> Iterator[Path]:
    """The `bin` of a new virtual environment with one requirement, in our pinned versions; it is deleted at the end."""
    with TemporaryDirectory(prefix="ramify-extra-") as folder:
        there = Path(folder, "bin")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = ["python", "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", "install"]
        pins = ["-c", str(REPOSITORY / "constraints.txt")] if is_pinned else []
        install = [*pip, *pins, requirement]
        done = run(install, there, Path(folder), timeout_s=INSTALL_S)
        assert done.returncode == 0, done.stdout + done.stderr
        yield there


def check_refused(done: subprocess.CompletedProcess[str], extra: str) -> None:
    """It failed, and the only installation that it names is that of the extra."""
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert set(re.findall(r"pip install [^\s)\"]+", said)) == {f"pip install 'ramify[{extra}]'"}, said


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def bare(wheel: Path) -> Iterator[Path]:
    """The `bin` of an environment without any extra."""
    with environment(str(wheel)) as there:
        yield there


def test_every_extra_has_a_trial() -> None:
    assert {path.stem.removesuffix("_trial") for path in TRIALS.glob("*_trial.py")} == set(EXTRAS)
    assert set(ELSEWHERE) | NO_FEATURE <= set(EXTRAS)


@pytest.mark.extras
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_brings_its_feature(extra: str, wheel: Path, tmp_path: Path) -> None:
    with environment(f"{wheel}[{extra}]", is_pinned=extra not in PINNED_APART) as there:
        done = run(["python", str(TRIALS / f"{extra}_trial.py")], there, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.extras
@pytest.mark.parametrize("extra", [extra for extra in EXTRAS if extra not in NO_FEATURE])
def test_without_the_extra_its_feature_is_refused(extra: str, bare: Path, tmp_path: Path) -> None:
    check_refused(run(["python", str(TRIALS / f"{extra}_trial.py")], bare, tmp_path), extra)


@pytest.mark.extras
@pytest.mark.parametrize(("extra", "line"), [(extra, line) for extra, lines in ELSEWHERE.items() for line in lines])
def test_without_the_extra_other_features_are_refused(extra: str, line: str, bare: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"text": "The owl is a bird."}\n', "utf-8")
    (tmp_path / "questions.parquet").write_bytes(b"PAR1")
    (tmp_path / "batch.pt").touch()
    check_refused(run(["bash", "-c", line], bare, tmp_path), extra)
