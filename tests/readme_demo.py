"""README's demo: what `ramify demo` prints, between marks, and its picture.

`python -m tests.readme_demo` runs the commands and writes what they print into README.md, and the picture to
docs/demo.svg. `tests/docs/test_readme_demo.py` fails where a command prints something else. No figure in there depends
on the machine.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parents[1]
PAGE, PICTURE = HERE / "README.md", HERE / "docs" / "demo.svg"
COMMANDS = ("ramify demo", "ramify demo --compare")


def printed(command: str, folder: Path) -> str:
    """What a command prints in an empty folder, without blanks at the ends of lines."""
    _, *arguments = command.split()
    run = [sys.executable, "-m", "ramify.cli.main", *arguments, "--quiet"]
    done = subprocess.run(run, cwd=folder, check=True, capture_output=True, text=True, timeout=600)
    assert not done.stderr, done.stderr
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def block(page: str, command: str) -> str:
    """What stands on the page between the marks of a command. Raises `ValueError` without them."""
    return _parts(page, command)[1]


def written(page: str, command: str, text: str) -> str:
    """The page with `text` between the marks of a command."""
    before, _, after = _parts(page, command)
    return f"{before}{text}{after}"


def _parts(page: str, command: str) -> tuple[str, str, str]:
    begin, end = f"<!-- {command} -->\n```\n", f"```\n<!-- /{command} -->\n"
    before, found, rest = page.partition(begin)
    text, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{PAGE.name} has no {begin!r} with {end!r} behind it")
    return before + begin, text, end + after


def main() -> None:
    for command in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            text = printed(command, Path(folder))
            PAGE.write_text(written(PAGE.read_text("utf-8"), command, text), "utf-8")
            if command == COMMANDS[0]:
                PICTURE.write_bytes((Path(folder) / "runs" / "demo" / "tree.svg").read_bytes())


if __name__ == "__main__":
    main()
