"""The digest of git repositories: equal for what a replay makes again, different for what the agent changed."""

import os
import subprocess
from pathlib import Path

import pytest

from ramify.workspaces.tree import TreeEntry, entry_of, walk
from ramify.workspaces.tree_digest import tree_digest


def git(folder: Path, *arguments: str, second: int = 0) -> None:
    when = f"{1_000_000_000 + second} +0000"
    settings = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "user.name=n", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, **settings}, capture_output=True)


def repository(folder: Path, *, second: int = 0) -> Path:
    folder.mkdir()
    (folder / "a").write_text("one\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one", second=second)
    git(folder, "tag", "-a", "v1", "-m", "v1", second=second)
    return folder


def digest(folder: Path) -> str:
    top = os.fsencode(folder)
    found: dict[bytes, TreeEntry] = {b"w": TreeEntry("folder", 0o755, b"", 0, top)}
    for path, status in walk(top):
        entry = entry_of(top, path, status)
        if entry is not None:
            found[b"w/" + path] = entry
    (folder / "w").symlink_to(".")  # Entries lie at their path below a layer.
    try:
        return tree_digest(found)
    finally:
        (folder / "w").unlink()


def test_commits_of_another_time_have_the_same_digest(tmp_path: Path):
    one, two = (repository(tmp_path / str(second), second=second) for second in (1, 2))
    assert digest(one) == digest(two)


@pytest.mark.parametrize(
    "commands",
    [
        ["commit -q --allow-empty -m x", "branch other"],
        ["rm -q a"],
        ["checkout -q -b other"],
        ["checkout -q --detach"],
        ["tag other"],
        ["update-ref -d refs/tags/v1"],
        ["config core.hooksPath /w/x"],
        ["stash -q"],
    ],
)
def test_what_an_agent_does_to_a_repository_moves_the_digest(tmp_path: Path, commands: list[str]):
    folder = repository(tmp_path / "r")
    (folder / "a").write_text("two\n")
    before = digest(folder)
    for command in commands:
        git(folder, *command.split(), second=9) if "rm" not in command else git(folder, "rm", "-qf", "a")
    assert digest(folder) != before


def test_a_staged_file_moves_the_digest(tmp_path: Path):
    folder = repository(tmp_path / "r")
    (folder / "a").write_text("two\n")
    before = digest(folder)
    git(folder, "add", "a")
    assert digest(folder) != before


def test_a_hook_moves_the_digest(tmp_path: Path):
    folder = repository(tmp_path / "r")
    before = digest(folder)
    (folder / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")
    assert digest(folder) != before


def test_packing_references_does_not_move_the_digest(tmp_path: Path):
    folder = repository(tmp_path / "r")
    before = digest(folder)
    git(folder, "pack-refs", "--all")
    assert digest(folder) == before


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("HEAD", b""),
        ("HEAD", b"\0\xff" * 9000),
        ("HEAD", b"0" * 40),
        ("index", b"DIRC"),
        ("index", b"DIRC\0\0\0\2\xff\xff\xff\xff" + bytes(80)),
        ("index", b"nonsense"),
        ("packed-refs", b"\n\n x\n" + b"0" * 40 + b"\n"),
        ("refs/heads/main", b"ref: refs/heads/main"),
    ],
)
def test_a_broken_repository_has_a_digest(tmp_path: Path, name: str, data: bytes):
    folder = repository(tmp_path / "r")
    (folder / ".git" / name).write_bytes(data)
    assert digest(folder) == digest(folder)


def test_a_hostile_object_is_read_within_bounds(tmp_path: Path):
    import zlib

    folder = repository(tmp_path / "r")
    name = (folder / ".git" / "refs" / "heads" / "main").read_text().strip()
    path = folder / ".git" / "objects" / name[:2] / name[2:]
    path.chmod(0o644)
    for data in (b"not zlib", zlib.compress(b"commit 9\0tree " + b"f" * 10), zlib.compress(bytes(64 << 20))):
        path.write_bytes(data)
        assert len(digest(folder)) == 64
    loop = zlib.compress(b"tag 9\0object " + name.encode() + b"\n")
    path.write_bytes(loop)
    assert len(digest(folder)) == 64
