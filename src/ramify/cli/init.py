"""`ramify init`: write a project that runs at once: settings, questions, a tool and a judge."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ramify.cli.exit_codes import ExitCode
from ramify.cli.options import add_json_flag
from ramify.cli.terminal import Terminal, visible
from ramify.core.errors import ConfigError

SOURCES = Path(__file__).parents[1] / "data" / "project"
"""Holds the files of a project. A Python file ends in `.txt` there, because it is no module of ramify."""
FILES: Mapping[str, str] = {
    "ramify.toml": "settings; every line says what it does",
    "task.py": "a tool and a judge",
    "questions.jsonl": "questions with gold answers",
}
"""File of a project -> what is in it."""
FIRST_RUN = "runs/first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder of the project, which is made if it is not there (default: the current folder)",
    )
    add_json_flag(parser)


def execute(options: argparse.Namespace, terminal: Terminal) -> ExitCode:
    folder: Path = options.folder
    write_project(folder)
    commands = next_commands(folder)
    if options.json:
        terminal.result("ramify.init/1", {"folder": str(folder), "files": list(FILES), "next": commands})
        return ExitCode.DONE
    width = max(len(str(folder / name)) for name in FILES)
    written = [f"wrote {visible(str(folder / name)):<{width}}  {about}" for name, about in FILES.items()]
    terminal.lines([*written, "next:", *(f"  {visible(command)}" for command in commands)])
    return ExitCode.DONE


def write_project(folder: Path) -> None:
    """Write all files. Raises `ConfigError`; a file that is there already is never overwritten."""
    try:
        _refuse_taken(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text_of(name))
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename or folder}: {error.strerror or error}; name a folder that you may write to"
        ) from error


def _refuse_taken(folder: Path) -> None:
    """Raise `ConfigError` if the folder is none, or a file of the project is there."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder")
    for name in FILES:
        if (folder / name).is_symlink() or (folder / name).exists():
            raise ConfigError(f"{folder / name} exists, and init overwrites nothing; name another folder, or rename it")


def text_of(name: str) -> str:
    """The text of a file of a project."""
    return (SOURCES / (f"{name}.txt" if name.endswith(".py") else name)).read_text("utf-8")


def next_commands(folder: Path) -> Sequence[str]:
    """The commands to type next: grow trees, and look at the first."""
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    return [f"{enter}ramify rollout --out {FIRST_RUN}", f"ramify show {FIRST_RUN} 0"]
