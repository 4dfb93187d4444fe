"""Run folders of somebody else: looking at one runs nothing, and what is no run file is refused by name."""

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.cli.commands import Said, ramify
from tests.sharded.divided import config, divided

from ramify.engines.shipped import MODELS
from ramify.store.framing import encode, frame
from ramify.store.journal import Reader
from ramify.store.store import config_hash

pytestmark = pytest.mark.hostile

READS = ("show", "check", "export")
"""Commands that end with an error if a run cannot be read."""
LOOKS = (*READS, "view")

PLANTED = '''
from pathlib import Path

Path(MARK).touch()

from ramify.strategies.chains import Chains, ChainsConfig
from ramify.tasks.countdown import Countdown
from ramify.testing import Scripted


class Task(Countdown):
    pass


class Engine(Scripted):
    pass


class Strategy(Chains):
    Config = ChainsConfig


class Judge:
    name = "mine"
    is_oracle = False

    async def judge(self, branch, problem):
        return 1.0


def look_up(query: str) -> str:
    """Look something up."""
    return query


def never(branch):
    return None


def all_of(tree, leaves, n, rng):
    return leaves[:n]
'''
SETTINGS = {
    "task": "task.name={}:Task",
    "engine": "engine.name={}:Engine",
    "strategy": "strategy.name={}:Strategy",
    "judge": "judges.mine.kind={}:Judge",
    "tool": "tools.use.look_up.kind={}:look_up",
    "prune": "growth.prune={}:never",
}


@contextmanager
def promptly(seconds: float = 20.0) -> Iterator[None]:
    """Fail what waits for ever."""

    def late(*_: object) -> None:
        raise TimeoutError(f"this took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def looked_at(capsys: pytest.CaptureFixture[str], command: str, run: Path, *more: object) -> Said:
    files = {
        "export": ("--to", "jsonl", "--out", run.with_suffix(".rows")),
        "view": ("--html", run.with_suffix(".html")),
    }
    extra = files.get(command, ())
    with promptly():
        return ramify(capsys, command, run, *extra, *more)


def planted(folder: Path) -> tuple[Path, Path]:
    """A file of plug-ins, and the file that it makes whenever it is loaded."""
    mark, file = folder / "loaded", folder / f"planted_{abs(hash(str(folder)))}.py"
    file.write_text(PLANTED.replace("MARK", repr(str(mark))), "utf-8")
    return file, mark


def begun(capsys: pytest.CaptureFixture[str], run: Path, *settings: str, engine: str = "scripted") -> None:
    flags = [word for setting in (f"engine.name={engine}", *settings) for word in ("--set", setting)]
    said = ramify(capsys, "rollout", "--prompts", 2, "--out", run, *flags)
    assert said.code == 0, said.err


def forged(run: Path, text: str, **fields: object) -> None:
    """Give a run another configuration, with its hash and checksum, as whoever sends a run may."""
    header = Reader(run / "journal").header
    header = msgspec.structs.replace(header, config_hash=config_hash(text), **fields)
    file = run / "journal" / "000000.jsonl"
    rest = file.read_bytes().splitlines(keepends=True)[1:-1]  # without the seal, whose checksum is another's
    file.write_bytes(frame(0, None, encode(header)) + b"".join(rest))
    (run / "config.toml").write_text(text, "utf-8")


@pytest.mark.parametrize("part", SETTINGS)
def test_looking_at_a_run_loads_no_part_that_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    """`show`, `check`, `export` and `view` load no plug-in that the run names."""
    file, mark = planted(tmp_path)
    begun(capsys, tmp_path / "run", SETTINGS[part].format(file))
    again = file.with_name("again.py")
    again.write_text(file.read_text("utf-8"), "utf-8")
    forged(tmp_path / "run", (tmp_path / "run" / "config.toml").read_text("utf-8").replace(str(file), str(again)))
    assert str(again) in (tmp_path / "run" / "config.toml").read_text("utf-8")
    mark.unlink()
    for command in LOOKS:
        said = looked_at(capsys, command, tmp_path / "run")
        assert said.code == 0, said.err
        assert not mark.exists()


@pytest.mark.parametrize("command", LOOKS)
def test_looking_starts_no_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Looking at a run starts no MCP server that it names."""
    begun(capsys, tmp_path / "run")
    mark = tmp_path / "started"
    text = (tmp_path / "run" / "config.toml").read_text("utf-8")
    evil = f'\n[tools.use.evil]\nkind = "mcp"\n[tools.use.evil.options]\ncommand = "touch"\nargs = ["{mark}"]\n'
    forged(tmp_path / "run", text + evil)
    said = looked_at(capsys, command, tmp_path / "run")
    assert said.code == 0, said.err
    assert not mark.exists()


def test_an_export_that_needs_a_plug_in_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An export whose rows a plug-in of the run draws is refused with the flag that allows it."""
    file, _ = planted(tmp_path)
    begun(capsys, tmp_path / "run", f"rows.sample={file}:all_of", "rows.leaves=1")
    said = looked_at(capsys, "export", tmp_path / "run")
    assert said.code == 2
    assert "all_of" in said.err and "--trust" in said.err
    assert looked_at(capsys, "export", tmp_path / "run", "--trust").code == 0
    assert "--trust" in looked_at(capsys, "check", tmp_path / "run").out


# -- files that are no files ------------------------------------------------------------------------------------------

FILES = ("config.toml", "journal/000000.jsonl")


def as_fifo(path: Path) -> str:
    os.mkfifo(path)
    return "FIFO"


def as_link(path: Path) -> str:
    path.symlink_to(path.with_name("elsewhere"))
    return "link"


def as_device(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return "link"


def as_socket(path: Path) -> str:
    here = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(here)
    return "socket"


def as_hole(path: Path) -> str:
    with path.open("wb") as file:
        file.truncate(3 * 2**30)
    return "3,221,225,472 bytes"


@pytest.mark.parametrize("make", [as_fifo, as_link, as_device, as_socket, as_hole])
@pytest.mark.parametrize("file", FILES)
def test_a_run_file_that_is_no_file_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, make: Callable[[Path], str]
) -> None:
    """A FIFO, a link, a device, a socket or a 3 GiB hole in place of a run's file is refused by name, at once."""
    run = tmp_path / "run"
    begun(capsys, run)
    (run / file).rename((run / file).with_name("elsewhere"))
    kind = make(run / file)
    for command in (*READS, "resume", "repair"):
        if command == "repair" and file == "config.toml":
            continue
        said = looked_at(capsys, command, run)
        told = said.out if command == "check" else said.err
        assert said.code == (5 if command == "check" else 3), (command, said)
        assert str(run / file) in told and kind in told, (command, told)


WRITTEN = ("log.jsonl", "journal/lock")


@pytest.mark.parametrize("make", ["link", "hard link", "FIFO"])
@pytest.mark.parametrize("file", WRITTEN)
def test_nothing_is_written_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, make: str
) -> None:
    """A resume writes through no link that a run folder holds, and into no FIFO."""
    run, mine = tmp_path / "run", tmp_path / "mine.txt"
    begun(capsys, run)
    mine.write_text("mine", "utf-8")
    (run / file).unlink()
    match make:
        case "link":
            (run / file).symlink_to(mine)
        case "hard link":
            os.link(mine, run / file)
        case _:
            os.mkfifo(run / file)
    said = looked_at(capsys, "resume", run)
    assert said.code == 3 and f"{(run / file).name} " in said.err and str((run / file).parent) in said.err, said
    assert mine.read_text("utf-8") == "mine"


@pytest.mark.parametrize("command", [*LOOKS, "resume", "repair"])
def test_a_journal_that_is_a_link_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """A journal folder that is a link is refused by name."""
    run = tmp_path / "run"
    begun(capsys, run)
    (run / "journal").rename(tmp_path / "elsewhere")
    (run / "journal").symlink_to(tmp_path / "elsewhere")
    said = looked_at(capsys, command, run)
    assert str(run / "journal") in said.err + said.out and "link" in said.err + said.out


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
@pytest.mark.parametrize("command", [*LOOKS, "resume"])
def test_a_link_to_another_users_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """A folder that is a link to another user's is refused by name."""
    begun(capsys, tmp_path / "run")
    os.chown(tmp_path / "run", 12345, -1)
    (tmp_path / "link").symlink_to(tmp_path / "run")
    said = looked_at(capsys, command, tmp_path / "link")
    assert str(tmp_path / "link") in said.err + said.out and "12345" in said.err + said.out


def test_a_repair_empties_no_folder_behind_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`repair` deletes nothing behind a link that a run folder holds."""
    run, mine = tmp_path / "run", tmp_path / "mine"
    begun(capsys, run)
    mine.mkdir()
    (mine / "thesis.tex").touch()
    (run / "journal.repaired").symlink_to(mine)
    file = run / "journal" / "000000.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], b"torn\n", *lines[3:]]))
    said = looked_at(capsys, "repair", run)
    assert said.code == 3 and "journal.repaired" in said.err
    assert (mine / "thesis.tex").exists()


def test_a_run_begins_behind_no_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run does not begin in a folder whose journal leads elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal").symlink_to(tmp_path / "elsewhere")
    said = ramify(capsys, "rollout", "--engine", "scripted", "--prompts", 1, "--out", tmp_path / "run")
    assert said.code == 3 and "link" in said.err
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_tokenizer_that_is_no_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking at a run waits for no FIFO in the folder of the model that it names."""
    model = Path(shutil.copytree(MODELS["builtin"], tmp_path / "model"))
    begun(capsys, tmp_path / "run", f"engine.model={model}", engine="builtin")
    assert looked_at(capsys, "show", tmp_path / "run").code == 0
    (model / "tokenizer_config.json").unlink(missing_ok=True)
    os.mkfifo(model / "tokenizer_config.json")
    said = looked_at(capsys, "show", tmp_path / "run")
    assert said.code == 3 and "tokenizer_config.json" in said.err


# -- going on with a run ----------------------------------------------------------------------------------------------


@pytest.fixture
def strangers_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """A run that another user began, which names a plug-in, an MCP server and an address; and what a load leaves."""
    file, mark = planted(tmp_path)
    run, sent = tmp_path / "theirs", tmp_path / "run"
    with monkeypatch.context() as other:
        other.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        begun(capsys, run, SETTINGS["task"].format(file), SETTINGS["judge"].format(file))
    shutil.copytree(run, sent)
    again = file.with_name("again.py")
    again.write_text(file.read_text("utf-8"), "utf-8")
    text = (sent / "config.toml").read_text("utf-8").replace(str(file), str(again))
    evil = f'\n[tools.use.evil]\nkind = "mcp"\n[tools.use.evil.options]\ncommand = "touch"\nargs = ["{mark}"]\n'
    forged(sent, text + evil + '[tools.use.web]\nkind = "retriever"\noptions = {base_url = "http://10.1.2.3:80"}\n')
    mark.unlink()
    return sent, mark


def test_a_run_that_another_user_began_needs_trust_to_go_on(
    strangers_run: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of another user, or changed after it began, goes on only with --trust, and says what it would run."""
    run, mark = strangers_run
    said = looked_at(capsys, "resume", run)
    assert said.code == 3 and not mark.exists()
    for wanted in ("again.py (task.name)", "again.py (judges.mine)", f"starts touch {mark}", "http://10.1.2.3:80"):
        assert wanted in said.err, said.err
    assert f"ramify resume {run} --trust" in said.err


def test_a_run_of_another_user_goes_on_when_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--trust goes on with another user's run after it said what runs."""
    file, mark = planted(tmp_path)
    begun(capsys, tmp_path / "run", SETTINGS["task"].format(file))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    said = looked_at(capsys, "resume", tmp_path / "run")
    assert said.code == 3 and str(file) in said.err and "--trust" in said.err
    said = looked_at(capsys, "resume", tmp_path / "run", "--trust")
    assert said.code == 0 and str(file) in said.err
    assert mark.exists()


def test_a_run_whose_configuration_was_edited_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration edited after the run began is refused, also when its hash in the header was edited with it."""
    begun(capsys, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    text = config.read_text("utf-8") + "# edited\n"
    config.write_text(text, "utf-8")
    said = looked_at(capsys, "resume", tmp_path / "run")
    assert said.code == 3 and "not what the run began with" in said.err
    header = Reader(tmp_path / "run" / "journal").header
    forged(tmp_path / "run", text)
    assert Reader(tmp_path / "run" / "journal").header.mac == header.mac
    said = looked_at(capsys, "resume", tmp_path / "run")
    assert said.code == 3 and "--trust" in said.err


@pytest.mark.parametrize("header", [{"mac": ""}, {"mac": "", "reading": None}])
def test_a_signature_cannot_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], header: dict[str, object]
) -> None:
    """A run whose signature was taken away is no run of yours, whatever version it says began it."""
    file, mark = planted(tmp_path)
    begun(capsys, tmp_path / "run", SETTINGS["engine"].format(file))
    mark.unlink()
    forged(tmp_path / "run", (tmp_path / "run" / "config.toml").read_text("utf-8"), **header)
    said = looked_at(capsys, "resume", tmp_path / "run")
    assert said.code == 3 and "--trust" in said.err and not mark.exists()


def test_your_own_run_goes_on_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that you began here goes on without a flag, also as a copy in another folder."""
    begun(capsys, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for run in (tmp_path / "run", tmp_path / "copy"):
        assert looked_at(capsys, "resume", run).code == 0


def test_a_key_that_cannot_be_kept_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the key of your runs cannot be kept, the run says so when it begins and needs --trust to go on."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    said = ramify(capsys, "rollout", "--engine", "scripted", "--prompts", 1, "--out", tmp_path / "run")
    assert said.code == 0 and str(tmp_path / "file") in said.err and "--trust" in said.err
    assert looked_at(capsys, "resume", tmp_path / "run").code == 3
    assert looked_at(capsys, "resume", tmp_path / "run", "--trust").code == 0


@pytest.mark.parametrize("fault", ["mode", "link", "short", "FIFO"])
def test_a_key_that_others_may_know_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A key that others may read, or that is no file of yours, signs nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    begun(capsys, tmp_path / "run")
    key = tmp_path / "state" / "ramify" / "run-key"
    assert key.stat().st_mode & 0o777 == 0o600 and key.parent.stat().st_mode & 0o777 == 0o700
    match fault:
        case "mode":
            key.chmod(0o644)
        case "link":
            key.rename(tmp_path / "key")
            key.symlink_to(tmp_path / "key")
        case "short":
            key.write_bytes(b"short")
        case _:
            key.unlink()
            os.mkfifo(key, 0o600)
    said = looked_at(capsys, "resume", tmp_path / "run")
    assert said.code == 3 and str(key) in said.err


def test_a_shard_that_leads_elsewhere_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A divided run whose shard is a link, or whose plan is a FIFO, is refused by name."""
    run = tmp_path / "run"
    divided(config("chains"), run, num_shards=2)
    assert looked_at(capsys, "resume", run).code == 0
    (run / "shards" / "1").rename(tmp_path / "elsewhere")
    (run / "shards" / "1").symlink_to(tmp_path / "elsewhere")
    for command in (*LOOKS, "resume"):
        said = looked_at(capsys, command, run)
        assert said.code in (3, 5) and f"{run / 'shards' / '1'} is a link" in said.err + said.out, said
    (run / "shards.json").unlink()
    os.mkfifo(run / "shards.json")
    for command in (*LOOKS, "resume"):
        said = looked_at(capsys, command, run)
        assert said.code in (3, 5) and "shards.json is a FIFO" in said.err + said.out, said
