"""What every registered export keeps to when it is called from Python: it replaces nothing that it did not make."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.rows.batches import chains

from ramify import plugins
from ramify.core.errors import ExportError
from ramify.rows import rows_of
from ramify.rows.files import files_of

Write = Callable[..., int]
FILES = {"arrays": "rows.npz", "parquet": "rows.parquet", "search_r1": "rows.safetensors", "verl": "rows.npz"}
"""Export -> the file it writes, where that is no `rows.jsonl`."""
OURS = b"written by hand\n"


@pytest.fixture(params=plugins.known("export"))
def export(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(export: str, folder: Path, *, seed: int = 0, **options: object) -> list[Path]:
    """The files of an export of one tree into `folder`."""
    write, tree = plugins.find("export", export), chains(1.0, *[0.0] * (1 + seed))
    parameters = inspect.signature(write).parameters
    takes_trees = next(iter(parameters)) == "trees"
    if "codec" in parameters:
        options["codec"] = tree.codec
    assert write([tree] if takes_trees else rows_of(tree), folder / FILES.get(export, "rows.jsonl"), **options) >= 0
    return files(export, folder)


def files(export: str, folder: Path) -> list[Path]:
    return files_of(plugins.find("export", export), folder / FILES.get(export, "rows.jsonl"))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_export_writes_its_files(export: str, tmp_path: Path) -> None:
    made = written(export, tmp_path)
    assert all(path.is_file() for path in made)
    assert {path.name for path in tmp_path.iterdir()} == {n for p in made for n in (p.name, f".{p.name}.export")}


@pytest.mark.parametrize("options", [{}, {"force": True}], ids=["plain", "force"])
def test_a_file_that_no_export_made_is_never_replaced(export: str, options: dict[str, bool], tmp_path: Path) -> None:
    for number, path in enumerate(files(export, tmp_path)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / path.name).write_bytes(OURS)
        with pytest.raises(ExportError, match="exists" if not options else "is not what an earlier export made"):
            written(export, folder, **options)
        assert content(folder) == {path.name: OURS}


def test_what_an_export_made_is_replaced_by_force_alone(export: str, tmp_path: Path) -> None:
    made = written(export, tmp_path)
    before = content(tmp_path)
    with pytest.raises(ExportError, match=r"exists; .*force=True"):
        written(export, tmp_path, seed=1)
    assert content(tmp_path) == before
    written(export, tmp_path, seed=1, force=True)
    assert export == "preference" or content(tmp_path) != before
    written(export, tmp_path, force=True)
    assert {path.name: path.read_bytes() for path in made} == {path.name: before[path.name] for path in made}


def test_what_was_changed_since_is_not_replaced(export: str, tmp_path: Path) -> None:
    for path in written(export, tmp_path):
        whole = path.read_bytes()
        path.write_bytes(whole + b" ")
        before = content(tmp_path)
        with pytest.raises(ExportError, match="was changed since"):
            written(export, tmp_path, seed=1, force=True)
        assert content(tmp_path) == before
        path.write_bytes(whole)


def make_link(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(OURS)
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [make_link, Path.mkdir, os.mkfifo])
def test_what_is_no_plain_file_is_never_replaced(export: str, make: Callable[[Path], object], tmp_path: Path) -> None:
    for path in files(export, tmp_path):
        make(path)
        for force in (False, True):
            with pytest.raises(ExportError, match="is no plain file"):
                written(export, tmp_path, force=force)
        assert {each.name for each in tmp_path.iterdir()} <= {path.name, "elsewhere"}
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_mark_that_is_none_is_left_alone(export: str, tmp_path: Path) -> None:
    path = files(export, tmp_path)[0]
    path.with_name(f".{path.name}.export").write_bytes(OURS)
    with pytest.raises(ExportError, match="is no mark of an export"):
        written(export, tmp_path, force=True)
    assert content(tmp_path) == {f".{path.name}.export": OURS}


def test_a_file_that_comes_while_an_export_is_written_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"

    def rows():
        yield from rows_of(chains(1.0, 0.0))
        path.write_bytes(OURS)

    with pytest.raises(ExportError, match="exists"):
        plugins.find("export", "jsonl")(rows(), path)
    assert content(tmp_path) == {path.name: OURS}
