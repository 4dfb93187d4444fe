"""Questions from folders: shards, saved data sets of huggingface/datasets, folders as on the hub; and their splits."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.saved_data import parquet, questions, save_dict_to_disk, save_to_disk

from ramify.config.configure import resolve
from ramify.core.errors import ConfigError
from ramify.tasks.data import DataConfig, read_problems


def jsonl(path: Path, *texts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in questions(*texts)))
    return path


def read(path: Path, split: str | None = None, **more: Any) -> tuple[str, set[str]]:
    """The questions in their order, as one text, and the splits that their problems say."""
    problems, faults = read_problems(DataConfig(path=str(path), split=split, answer="answer", **more))
    assert not faults
    assert [problem.uid for problem in problems] == [str(number) for number in range(len(problems))]
    return "".join(problem.question for problem in problems), {problem.split for problem in problems}


def refusal(path: Path, split: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read_problems(DataConfig(path=str(path), split=split))
    return str(caught.value)


@pytest.mark.covers("S3.8")
def test_a_folder_of_shards_is_read_in_the_order_of_their_names(tmp_path: Path):
    for name, text in (("part-00002", "c"), ("part-00000", "a"), ("part-00001", "b")):
        parquet(tmp_path / f"{name}.snappy.parquet", questions(text))
    for name in ("_SUCCESS", ".part-00000.crc", "_metadata.parquet", "README.md"):
        (tmp_path / name).write_bytes(b"")
    assert read(tmp_path) == ("abc", {""})
    for index in range(2):
        parquet(tmp_path / "numbered" / f"shard-{index:05d}-of-00002.parquet", questions(str(index)))
    assert read(tmp_path / "numbered") == ("01", {""})


def test_a_folder_of_json_lines_or_csv_is_read_the_same_way(tmp_path: Path):
    jsonl(tmp_path / "lines" / "b.ndjson", "c", "d")
    jsonl(tmp_path / "lines" / "a.jsonl", "a", "b")
    assert read(tmp_path / "lines") == ("abcd", {""})
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "train.CSV").write_text("question,answer\na,1\n")
    assert read(tmp_path / "cells") == ("a", {"train"})


@pytest.mark.covers("S3.8")
def test_a_saved_dataset_is_read_in_the_order_of_its_own_list(tmp_path: Path):
    folder = save_to_disk(tmp_path / "saved", [questions("a", "b"), questions("c")])
    assert read(folder) == ("abc", {""})
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(state))
    assert read(folder) == ("cab", {""})


def test_a_saved_dataset_that_knows_its_split_says_it(tmp_path: Path):
    folder = save_to_disk(tmp_path / "saved", [questions("a")], "train")
    assert read(folder) == read(folder, "train") == ("a", {"train"})
    assert f"data.split = 'test': {folder} holds the splits 'train'" in refusal(folder, "test")
    unnamed = save_to_disk(tmp_path / "unnamed", [questions("a")])
    assert f"data.split = 'test': {unnamed} names no split; leave data.split out" in refusal(unnamed, "test")


@pytest.mark.covers("S3.8")
def test_a_saved_dict_of_datasets_is_read_by_split(tmp_path: Path):
    folder = save_dict_to_disk(tmp_path / "d", {"train": [questions("a"), questions("b")], "test": [questions("c")]})
    assert read(folder, "train") == ("ab", {"train"})
    assert read(folder, "test") == ("c", {"test"})
    assert f"{folder} holds the splits 'train', 'test'; choose one of them: data.split = ..." in refusal(folder)
    assert f"data.split = 'dev': {folder} holds the splits 'train', 'test'" in refusal(folder, "dev")
    alone = save_dict_to_disk(tmp_path / "alone", {"train": [questions("a")]})
    assert read(alone) == ("a", {"train"})


def test_a_saved_folder_that_is_not_whole_is_named(tmp_path: Path):
    folder = save_dict_to_disk(tmp_path / "d", {"train": [questions("a"), questions("b")], "test": [questions("c")]})
    shard = folder / "train" / "data-00001-of-00002.arrow"
    shard.write_bytes(b"")
    assert f"{shard} is empty (0 bytes)" in refusal(folder, "train")
    shard.unlink()
    assert f"{shard} does not exist or is not a file" in refusal(folder, "train")
    state = folder / "train" / "state.json"
    for content, message in (
        ('{"_data_files": []}', f"{state} lists no data files"),
        ('{"_data_files": 3}', f"{state} is not a file of the library datasets"),
        ("{", f"{state} is not a file of the library datasets"),
        ('{"_data_files": [{"filename": "a"}], "_indices_data_files": [{"filename": "b"}]}', "picks rows by a second"),
    ):
        state.write_text(content)
        assert message in refusal(folder, "train")
    state.unlink()
    assert f"{state} cannot be read: No such file" in refusal(folder, "train")
    assert read(folder, "test") == ("c", {"test"})
    (folder / "dataset_dict.json").write_text('{"splits": []}')
    assert "lists no splits" in refusal(folder)


@pytest.mark.covers("S3.8")
def test_a_folder_as_on_the_hub_is_read_by_split(tmp_path: Path):
    (tmp_path / "README.md").write_text("# A data set\n")
    for split in ("train_sft", "test"):
        for index in range(2):
            parquet(tmp_path / "data" / f"{split}-{index:05d}-of-00002.parquet", questions(f"{split}{index} "))
    assert read(tmp_path, "train_sft") == ("train_sft0 train_sft1 ", {"train_sft"})
    assert read(tmp_path / "data", "test") == ("test0 test1 ", {"test"})
    assert f"{tmp_path} holds the splits 'test', 'train_sft'; choose one" in refusal(tmp_path)
    assert "holds the splits 'test', 'train_sft'" in refusal(tmp_path, "train")


def test_names_of_files_and_of_folders_say_the_split(tmp_path: Path):
    jsonl(tmp_path / "files" / "train.jsonl", "a")
    jsonl(tmp_path / "files" / "gsm8k_test.jsonl", "b")
    assert read(tmp_path / "files", "train") == ("a", {"train"})
    assert read(tmp_path / "files", "test") == ("b", {"test"})
    for name in ("train/2.jsonl", "train/1.jsonl", "dev/x.jsonl", "images/notes.txt"):
        jsonl(tmp_path / "folders" / name, name)
    assert read(tmp_path / "folders", "train") == ("train/1.jsonltrain/2.jsonl", {"train"})
    assert read(tmp_path / "folders", "dev") == ("dev/x.jsonl", {"dev"})
    jsonl(tmp_path / "files" / "more.jsonl", "c")
    assert "holds the splits 'test', 'train', and files that name no split; choose" in refusal(tmp_path / "files")


def test_the_name_of_a_single_file_says_its_split(tmp_path: Path):
    for name, split in (("train.jsonl", "train"), ("train_test.jsonl", ""), ("latest.jsonl", ""), ("q.jsonl", "")):
        assert read(jsonl(tmp_path / name, "a")) == ("a", {split})
    assert read(tmp_path / "train.jsonl", "train") == ("a", {"train"})
    assert "data.split = 'test': " in refusal(tmp_path / "train.jsonl", "test")
    assert "q.jsonl names no split; leave data.split out" in refusal(tmp_path / "q.jsonl", "train")


def test_bad_rows_are_named_by_their_file(tmp_path: Path):
    jsonl(tmp_path / "a.jsonl", "a", " ")
    parquet(tmp_path / "shards" / "a.parquet", [{"question": "a?", "id": 1}])
    parquet(tmp_path / "shards" / "b.parquet", [{"question": "b?", "id": 2}, {"question": "c?", "id": 1}])
    assert refusal(tmp_path / "a.jsonl").startswith(f"{tmp_path / 'a.jsonl'}:2: ")
    with pytest.raises(ConfigError) as caught:
        read_problems(DataConfig(path=str(tmp_path / "shards"), uid="id"))
    used = f"row 1 of {tmp_path / 'shards' / 'a.parquet'} has the uid '1' too"
    assert str(caught.value).startswith(f"{tmp_path / 'shards' / 'b.parquet'} row 2: {used}")


@pytest.mark.covers("S3.8")
def test_a_folder_that_holds_no_data_or_holds_it_elsewhere_is_refused(tmp_path: Path):
    assert f"{tmp_path} holds no data files; a data file ends in .jsonl" in refusal(tmp_path)
    (tmp_path / "README.md").write_text("")
    (tmp_path / "data").mkdir()
    assert "data holds no data files" in refusal(tmp_path)
    (tmp_path / "data").rmdir()
    for config in ("main", "socratic"):
        parquet(tmp_path / config / "train-00000-of-00001.parquet", questions(config))
    assert "its folders main, socratic hold some: name one of them" in refusal(tmp_path)
    assert read(tmp_path / "main") == ("main", {"train"})


def test_what_may_or_may_not_belong_is_refused(tmp_path: Path):
    jsonl(tmp_path / "two" / "train.jsonl", "a")
    jsonl(tmp_path / "two" / "train" / "x.jsonl", "a")
    assert "both hold the split 'train'" in refusal(tmp_path / "two")
    jsonl(tmp_path / "beside" / "train.jsonl", "a")
    jsonl(tmp_path / "beside" / "data" / "train.jsonl", "a")
    assert "data files are in " in refusal(tmp_path / "beside")
    jsonl(tmp_path / "kinds" / "train.jsonl", "a")
    parquet(tmp_path / "kinds" / "train.parquet", questions("a"))
    said = refusal(tmp_path / "kinds")
    assert "files of several kinds for one split: JSONL (train.jsonl), Parquet (train.parquet)" in said


@pytest.mark.covers("S3.8")
def test_a_shard_that_is_empty_missing_damaged_or_a_link_to_nothing_is_named(tmp_path: Path):
    first = parquet(tmp_path / "train-00000-of-00003.parquet", questions("a"))
    last = parquet(tmp_path / "train-00002-of-00003.parquet", questions("c"))
    assert "train-00001-of-00003 is missing: 2 of 3 are there" in refusal(tmp_path)
    middle = tmp_path / "train-00001-of-00003.parquet"
    middle.touch()
    assert f"{middle} is empty (0 bytes)" in refusal(tmp_path)
    middle.write_bytes(last.read_bytes()[:-9])
    assert f"{middle} cannot be read: " in refusal(tmp_path)
    middle.unlink()
    middle.symlink_to("nowhere")
    assert f"{middle} is a link to nowhere, which is not there" in refusal(tmp_path)
    middle.unlink()
    middle.symlink_to(first)
    assert read(tmp_path) == ("aac", {"train"})


def test_links_are_read_under_their_own_names_as_the_cache_of_the_hub_has_them(tmp_path: Path):
    blob = parquet(tmp_path / "blobs" / "0a1b", questions("a"))
    link = tmp_path / "snapshots" / "main" / "data" / "train-00000-of-00001.parquet"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    (tmp_path / "latest").symlink_to(tmp_path / "snapshots" / "main")
    assert read(tmp_path / "latest") == ("a", {"train"})
    path = resolve(flags={"data.path": str(link)}).config.data.path
    assert path == str(link)
    assert read(Path(path)) == ("a", {"train"})


def test_a_path_to_nothing_is_refused(tmp_path: Path):
    for name in ("folder", "file.parquet"):
        assert f"{tmp_path / name} cannot be read: No such file or directory" in refusal(tmp_path / name)
    (tmp_path / "data").symlink_to(tmp_path)
    assert "data holds no data files" in refusal(tmp_path)


def test_a_split_is_chosen_from_a_path():
    with pytest.raises(ConfigError, match=r"data\.split = 'train' needs data\.path, which is not set"):
        DataConfig(split="train", questions=("a?",))
    assert resolve(overrides=["data.path=questions", "data.split=test"]).config.data.split == "test"
