"""Data folders: the files behind a path, in reading order, and their split.

A path is one of three things: a file; a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`, whose
own file lists are used (huggingface/datasets:src/datasets/arrow_dataset.py); or a folder of data files, whose names
tell their split, as on the Hugging Face hub (src/datasets/data_files.py). Files of a split are read in the order of
their names. Links are followed but keep their own names, because the hub's cache consists of links.

Nothing is skipped silently. Several splits of which none is chosen, a missing or empty shard, files of several kinds
and ambiguous folders are each a `ConfigError` that names them. No row is read here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from ramify.core.errors import ConfigError

KINDS: Final[Mapping[str, str]] = {
    ".jsonl": "JSONL",
    ".ndjson": "JSONL",
    ".csv": "CSV",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
}
"""File suffix -> the kind the file is read as."""
SPLIT_WORDS: Final = frozenset("train training validation valid val dev test testing eval evaluation".split())
"""Words in the name of a file or folder that tell its split (huggingface/datasets:src/datasets/data_files.py)."""
NAMELESS: Final = frozenset({"data", "part", "shard"})
"""Words before `-00000-of-00002` that are not a split."""

DICT_FILE: Final = "dataset_dict.json"
STATE_FILE: Final = "state.json"

_SHARD = re.compile(r"(?P<base>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})")
_SPLIT_NAME = re.compile(r"\w+(\.\w+)*")
_BETWEEN_WORDS = re.compile(r"[-._ \d]+")


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Files of one kind in reading order, and their common split."""

    files: tuple[Path, ...]
    split: str
    """'' = no name tells the split."""


class _Splits(msgspec.Struct):
    """The content of `dataset_dict.json`."""

    splits: list[str]


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    """The parts of `state.json` that tell where the rows are."""

    files: list[_File] = msgspec.field(name="_data_files")
    split: str | None = msgspec.field(name="_split", default=None)
    indices: list[Any] | None = msgspec.field(name="_indices_data_files", default=None)


_Value = TypeVar("_Value", _Splits, _State)


def data_files(path: Path, split: str | None) -> DataFiles:
    """The files of `split` behind `path`; None = the only split. Raises `ConfigError` that names the fault."""
    try:
        if not path.is_dir():
            return _of_file(path, split)
        if (path / DICT_FILE).exists():
            name = _chosen(path, _decoded(path / DICT_FILE, _Splits).splits, split)
            return DataFiles(_saved(path / name)[0], name)
        if (path / STATE_FILE).exists():
            files, saved_split = _saved(path)
            return DataFiles(files, _chosen(path, [saved_split], split))
        splits = _by_name(path)
        name = _chosen(path, splits, split)
        return DataFiles(_shards(splits[name]), name)
    except OSError as error:
        raise ConfigError(f"{error.filename or path} cannot be read: {error.strerror}") from error


def split_of(path: Path) -> str:
    """The split that a file's name tells, or ''."""
    name = path.name.removesuffix(path.suffix)
    shard = _SHARD.match(name)
    base = shard["base"] if shard else name
    if shard and base not in NAMELESS and _SPLIT_NAME.fullmatch(base):
        return base
    words = {word for word in _BETWEEN_WORDS.split(base) if word in SPLIT_WORDS}
    return words.pop() if len(words) == 1 else ""


def _of_file(path: Path, split: str | None) -> DataFiles:
    path.stat()
    if path.suffix.lower() not in KINDS:
        raise ConfigError(
            f"{path} ends in {path.suffix!r}, but a data file ends in {', '.join(KINDS)}; name such a file or a folder"
        )
    return DataFiles((path,), _chosen(path, [split_of(path)], split))


def _chosen(path: Path, names: Iterable[str], split: str | None) -> str:
    """`split`, or the only one of `names`. A name of '' stands for files whose names tell no split."""
    names = list(names)
    there = ", ".join(repr(name) for name in names if name)
    if split is not None and split not in names:
        said = f"holds the splits {there}; choose one of them" if there else "names no split; leave data.split out"
        raise ConfigError(f"data.split = {split!r}: {path} {said}")
    if split is None and not names:
        raise ConfigError(f"{path} lists no splits; save the data set again")
    if split is None and len(names) != 1:
        beside = ", and files that name no split" if "" in names else ""
        raise ConfigError(f"{path} holds the splits {there}{beside}; choose one of them: data.split = ...")
    return names[0] if split is None else split


# -- folders that datasets saved --------------------------------------------------------------------------------------


def _saved(folder: Path) -> tuple[tuple[Path, ...], str]:
    """The files of a saved data set in its own order, and the split that it was loaded from, or ''."""
    state = _decoded(folder / STATE_FILE, _State)
    if state.indices:
        raise ConfigError(
            f"{folder / STATE_FILE} picks rows by a second file, as old versions of the library datasets did; load "
            "the folder with datasets and save it again with a newer version"
        )
    if not state.files:
        raise ConfigError(f"{folder / STATE_FILE} lists no data files; save the data set again")
    return _present([folder / file.filename for file in state.files]), state.split or ""


def _decoded(path: Path, kind: type[_Value]) -> _Value:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not a file of the library datasets: {error}; save the data set again") from error


# -- folders of files -------------------------------------------------------------------------------------------------


def _by_name(folder: Path) -> dict[str, list[Path]]:
    """Split -> its files: those of the folder and of subfolders named like a split, or else those of `data`."""
    splits: dict[str, list[Path]] = {}
    for file in _files_in(folder):
        splits.setdefault(split_of(file), []).append(file)
    others = {sub.name: files for sub in _folders_in(folder) if (files := _files_in(sub))}
    for name in [name for name in others if SPLIT_WORDS.intersection(_BETWEEN_WORDS.split(name))]:
        if name in splits:
            raise ConfigError(f"{splits[name][0]} and {folder / name} both hold the split {name!r}; name one of them")
        splits[name] = others.pop(name)
    if splits and "data" in others:
        there = next(iter(splits.values()))[0]
        raise ConfigError(f"data files are in {folder / 'data'} and also beside it, such as {there}; name one of them")
    if not splits and (folder / "data").is_dir():
        return _by_name(folder / "data")
    if not splits:
        inside = f"; its folders {', '.join(others)} hold some: name one of them" if others else ""
        raise ConfigError(f"{folder} holds no data files; a data file ends in {', '.join(KINDS)}{inside}")
    return splits


def _listed(folder: Path) -> list[Path]:
    """The entries of a folder in the order of their names, without hidden files and markers of writers (`_SUCCESS`)."""
    return sorted((p for p in folder.iterdir() if not p.name.startswith((".", "_"))), key=lambda p: p.name)


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in _listed(folder) if path.is_dir()]


def _files_in(folder: Path) -> list[Path]:
    """Data files of a folder. Broken links are included, because they are reported by name when read."""
    return [path for path in _listed(folder) if path.suffix.lower() in KINDS and not path.is_dir()]


def _shards(files: Sequence[Path]) -> tuple[Path, ...]:
    """The files of one split, after checking that all shards exist and are of one kind."""
    kinds = {KINDS[file.suffix.lower()]: file for file in reversed(files)}
    if len(kinds) > 1:
        shown = ", ".join(f"{kind} ({file.name})" for kind, file in sorted(kinds.items()))
        raise ConfigError(f"{files[0].parent} holds files of several kinds for one split: {shown}; name one of them")
    _refuse_missing_shards(files)
    return _present(files)


def _refuse_missing_shards(files: Sequence[Path]) -> None:
    """Raise `ConfigError` if `-of-00003` announces a shard that does not exist."""
    seen: dict[tuple[str, int], set[int]] = {}
    for file in files:
        if shard := _SHARD.match(file.name):
            seen.setdefault((shard["base"], int(shard["count"])), set()).add(int(shard["index"]))
    for (base, count), indices in seen.items():
        for index in range(count):
            if index not in indices:
                name = files[0].parent / f"{base}-{index:05d}-of-{count:05d}"
                raise ConfigError(f"the shard {name} is missing: {len(indices)} of {count} are there; add it")


def _present(files: Sequence[Path]) -> tuple[Path, ...]:
    """`files`, after checking that each is a non-empty file."""
    for file in files:
        if file.is_symlink() and not file.exists():
            raise ConfigError(
                f"{file} is a link to {file.readlink()}, which is not there; restore that file or remove the link"
            )
        if not file.is_file():
            raise ConfigError(f"{file} does not exist or is not a file; add it or save the data set again")
        if not file.stat().st_size:
            raise ConfigError(f"{file} is empty (0 bytes); write it again or remove it")
    return tuple(files)
