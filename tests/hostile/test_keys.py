"""Keys: an address that holds one is never shown whole."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.commands import ramify
from tests.runner.parts import OneChain, grown

from ramify.cli.progress import RunProgress
from ramify.cli.running import grown_shown
from ramify.cli.terminal import terminal
from ramify.core.command import Command
from ramify.core.errors import ConfigError, EnginesDown, EngineUnusable
from ramify.core.tree import Tree
from ramify.edge.error_text import error_text
from ramify.edge.http import Http
from ramify.edge.url_keys import without_url_keys
from ramify.runner.report import RunReport

pytestmark = pytest.mark.hostile

KEY = "sk-abcdefg123"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"http://me:{KEY}@host:1/v1", "http://***@host:1/v1"),
        (f"https://{KEY}@host/v1?x=1", "https://***@host/v1?x=1"),
        (f"https://host/mcp?apiKey={KEY}&profile=a", "https://host/mcp?apiKey=***&profile=a"),
        (f"wss://host/?a=1&access_token={KEY}#b", "wss://host/?a=1&access_token=***#b"),
        (f"https://host/v1?X-Amz-Signature={KEY};sig={KEY}", "https://host/v1?X-Amz-Signature=***;sig=***"),
        ("https://host/v1?api-version=2024", "https://host/v1?api-version=2024"),
        ("mail a@b.c about key=1", "mail a@b.c about key=1"),
    ],
)
def test_an_address_is_shown_without_its_keys(address: str, shown: str) -> None:
    """A user, a password or a key in an address is shown as `***`."""
    assert without_url_keys(f"see {address} there") == f"see {shown} there"


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("url", [f"http://me:{KEY}@127.0.0.1:9/v1", f"http://127.0.0.1:9/v1?api_key={KEY}"])
def test_a_dry_run_shows_no_key(url: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """`rollout --dry-run` shows the configuration without the keys in its addresses."""
    server = f"tools.use.mcp.options.url='{url}'"
    said = ramify(
        capsys, "rollout", "--engine", "openai", "--model", "m", "--base-url", url, "--set", server, "--dry-run", *more
    )
    assert said.code == 0
    assert "***" in said.out
    assert KEY not in said.out + said.err
    if more:
        assert json.loads(said.out)["schema"] == "ramify.config/1"


@pytest.mark.parametrize("url", [f"http://me:{KEY}@127.0.0.1:9/v1", f"http://127.0.0.1:9/v1?api_key={KEY}"])
def test_an_address_that_is_refused_is_named_without_its_keys(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error for an address with a key does not repeat the key."""
    with pytest.raises(ConfigError) as refused:
        Http(url)
    assert KEY not in str(refused.value)
    said = ramify(
        capsys, "rollout", "--engine", "openai", "--model", "m", "--base-url", url, "--prompts", "1", "--json"
    )
    assert said.code == 2
    assert KEY not in said.out + said.err


@pytest.mark.parametrize(("error", "code"), [(EngineUnusable, 3), (EnginesDown, 75)])
def test_a_run_that_ends_in_an_error_tells_no_key(
    error: type[EnginesDown], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error that ends a run holds no key of an address, on stderr and in the object of `--json`."""

    def grow(progress: RunProgress) -> RunReport:
        raise error("unreachable", f"http://me:{KEY}@127.0.0.1:9/v1 and http://127.0.0.1:9/v1?api_key={KEY}")

    ended = grown_shown(grow, tmp_path, terminal(), title="x", num_trees=1, is_json=True)
    said = capsys.readouterr()
    assert ended == code
    assert KEY not in said.out + said.err
    assert json.loads(said.out)["error"].count("***") == 2


def test_a_tree_that_failed_tells_no_key() -> None:
    """Why a tree was not finished is told without the keys of addresses."""

    class Leaking(OneChain):
        def wanted(self, tree: Tree) -> Sequence[Command] | None:
            raise ConfigError(f"http://127.0.0.1:9/v1?api_key={KEY}")

    result = grown(Leaking)
    (why,) = result.report.unfinished.values()
    assert "***" in why and KEY not in why


def test_what_a_library_raises_is_told_without_keys() -> None:
    """The message of a failed tool call, which the model reads, holds no key of an address."""
    assert error_text(OSError(f"cannot reach https://host/mcp?apiKey={KEY}")) == (
        "OSError: cannot reach https://host/mcp?apiKey=***"
    )
