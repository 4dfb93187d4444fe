import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import ramify

from ramify import __version__
from ramify.cli.main import COMMANDS, main


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys)
    assert said.code == 2
    assert not said.out
    assert set(COMMANDS) <= {line.split()[0] for line in said.err.splitlines() if line.startswith("    ")}


@pytest.mark.parametrize("arguments", [["rolout"], ["rollout", "--prompt", "3"], ["rollout", "--prompts", "x"]])
def test_a_bad_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: ramify" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rolout"], "unknown command 'rolout'; did you mean 'rollout'?"),
        (["rollout", "--prompt", "3"], "unknown argument '--prompt'; did you mean '--prompts'"),
        (["rollout", "--promts=3"], "unknown argument '--promts'; did you mean '--prompts'"),
        (["eval", "--preset", "arpo", "--presets", "arpo"], "unknown argument '--preset'; did you mean '--presets'"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_is_nearest(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--prompts", "--problems"])
def test_the_number_of_problems_has_two_names(flag: str, capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "rollout", "--engine", "scripted", flag, "3", "--dry-run", "--json")
    assert said.json["config"]["prompts"] == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: ramify {command}" in capsys.readouterr().out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"ramify {__version__}\n"


def test_help_loads_no_numbers_and_no_event_loop():
    code = "import sys; from ramify.cli.main import main\ntry: main(['rollout', '--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('numpy', 'asyncio', 'ramify.runner.folder') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"


def test_errors_are_one_line_without_a_traceback_unless_asked(capsys: pytest.CaptureFixture[str]):
    said = ramify(capsys, "show", "nowhere")
    assert (said.code, said.out) == (3, "")
    assert said.err == "error: nowhere is no run: it has no journal folder\n"
    with pytest.raises(Exception, match="nowhere is no run"):
        main(["show", "nowhere", "-vv"])


def test_a_reader_that_goes_away_is_no_crash():
    command = f"{sys.executable} -m ramify.cli.main presets | true; exit ${{PIPESTATUS[0]}}"
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert said.returncode in (0, 1)
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("module", ["ramify.cli.rollout", "ramify.cli.options", "rich.console", "ramify.config.toml"])
def test_ctrl_c_while_a_command_is_imported_leaves_no_traceback(module: str):
    code = f"""
import os, signal, sys
from ramify.cli.main import main

class Interrupts:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.exit(main(["rollout", "--dry-run"]))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "error: interrupted\n")


def test_ctrl_c_while_a_dataclass_is_made_gives_the_exit_code(tmp_path: Path):
    """CPython, run by `-m`, ends by the signal if the Ctrl-C fell into an `exec`."""
    code = """
import sys
from ramify.cli import main

main.parsers = lambda arguments: exec("raise KeyboardInterrupt")
sys.exit(main.main([]))
"""
    (tmp_path / "interrupted.py").write_text(code, "utf-8")
    command = [sys.executable, "-m", "interrupted"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "error: interrupted\n")


RAISED = "raise KeyboardInterrupt"
WRAPPED = """
class Interrupted:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGINT)

class Owner:
    value = Interrupted()
"""
DROPPED = """
class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

Interrupted()
"""
REPLACED = """
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("a library that cannot be imported")
"""


@pytest.mark.parametrize("imported", [RAISED, WRAPPED, DROPPED, REPLACED])
def test_ctrl_c_that_an_import_loses_ends_the_command(tmp_path: Path, imported: str):
    (tmp_path / "interrupted.py").write_text(f"import os, signal\n{imported}", "utf-8")
    code = """
import sys
from ramify.cli.main import main

class Interrupts:
    def find_spec(self, name, *rest):
        if name == "ramify.cli.rollout":
            import interrupted

sys.meta_path.insert(0, Interrupts())
sys.exit(main(["rollout", "--dry-run"]))
"""
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "error: interrupted\n")


@pytest.mark.slow
def test_ctrl_c_that_comes_out_as_another_error_is_still_an_interrupt(tmp_path: Path):
    """As of a plug-in that is imported while the command runs."""
    (tmp_path / "plugin.py").write_text(f"import os, signal\n{WRAPPED}", "utf-8")
    command = [sys.executable, "-m", "ramify.cli.main", "rollout", "--strategy", "plugin.py:Owner", "--dry-run"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (130, "", "error: interrupted\n")
