"""The wheel and the sdist hold what they must, nothing else, and say what the package is."""

import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import ZipFile

import pytest

from ramify import __version__

REPOSITORY = Path(__file__).parents[2]
SOURCES = REPOSITORY / "src"
MODEL_FILE = r"(config|generation_config|report|special_tokens_map|tokenizer|tokenizer_config)\.json"
WHEEL_RULES = (
    r"ramify/([a-z_0-9]+/)*[a-z_0-9]+\.py",
    r"ramify/py\.typed",
    r"ramify/engines/fused_step\.c",
    r"ramify/presets/[a-z_0-9]+\.toml",
    rf"ramify/data/(builtin|herds|value)/({MODEL_FILE}|model\.safetensors|report\.md)",
    r"ramify/data/project/(ramify\.toml|task\.py\.txt|questions\.jsonl)",
    r"ramify/view/static/[a-z_]+\.(js|css|html)",
    r"ramify-[0-9.]+\.dist-info/(METADATA|RECORD|WHEEL|entry_points\.txt|licenses/LICENSE)",
)
"""What a file of the wheel may be."""
SDIST_ROOTS = {
    *("src", "models", "tests", "docs", "examples", "bench", "PKG-INFO", "pyproject.toml", "Makefile", ".gitignore"),
    *("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff"),
    *("constraints.txt", "constraints-engines.txt", "constraints-gateway.txt", "constraints-trainers.txt"),
}
MAX_WHEEL_BYTES = 8 << 20
"""Of the 7.2 MB most are weights of the three models."""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Iterator[ZipFile]:
    with ZipFile(next(dist.glob("*.whl"))) as wheel:
        yield wheel


@pytest.fixture(scope="module")
def about(wheel: ZipFile) -> Message:
    """The metadata of the wheel; its payload is the long description."""
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


@pytest.mark.slow
def test_every_file_of_the_wheel_has_a_rule(wheel: ZipFile) -> None:
    assert not [name for name in wheel.namelist() if not any(re.fullmatch(rule, name) for rule in WHEEL_RULES)]


def test_the_wheel_has_every_file_of_the_package(wheel: ZipFile) -> None:
    files = (file for file in (SOURCES / "ramify").rglob("*") if file.is_file() and file.suffix != ".pyc")
    packed = {name for name in wheel.namelist() if name.startswith("ramify/")}
    assert packed == {file.relative_to(SOURCES).as_posix() for file in files}
    assert {"ramify/py.typed", "ramify/data/builtin/model.safetensors", "ramify/presets/chains.toml"} <= packed


def test_the_wheel_is_small(dist: Path) -> None:
    assert next(dist.glob("*.whl")).stat().st_size < MAX_WHEEL_BYTES


def test_the_sdist_has_what_the_tests_need_and_nothing_else(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        paths = [Path(name).parts for name in sdist.getnames()]
    assert {parts[1] for parts in paths} == SDIST_ROOTS
    assert not [parts for parts in paths if {"__pycache__", "build", "dist"} & set(parts)]


def test_the_metadata_says_what_the_package_is(about: Message) -> None:
    assert about["Name"] == "ramify"
    assert about["Version"] == __version__
    assert about["Summary"]
    assert about["Author"] == "The ramify developers"
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload() == (REPOSITORY / "README.md").read_text("utf-8")


def test_the_metadata_names_no_private_host(about: Message) -> None:
    hosts = [urlsplit(line.partition(", ")[2]).hostname or "" for line in about.get_all("Project-URL", [])]
    assert not [host for host in hosts if "." not in host or is_address(host)]


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def test_every_version_of_python_that_is_claimed_is_tested(about: Message) -> None:
    prefix = "Programming Language :: Python :: 3."
    claimed = {line.removeprefix(prefix) for line in about.get_all("Classifier", []) if line.startswith(prefix)}
    workflow = (REPOSITORY / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    assert {f'"3.{minor}"' for minor in claimed} == set(re.findall(r'"3\.\d+"', workflow))
