import json
import pickle
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.make_tokenizer import (
    CONTROL_TOKENS,
    FIRST_NAMES,
    LAST_NAMES,
    added_tokens,
    special_tokens_map_json,
    tokenizer_config_json,
    tokenizer_json,
)
from tokenizers import Tokenizer

from ramify.engines.tokenizer import TokenizerFile

FOLDER = Path(__file__).parents[2] / "src" / "ramify" / "data" / "builtin"
FROZEN_SHA256 = "c2dcfed57224097ecefb4cf9765b575cca0e91b77b0e3733c0adeb6a358409f0"

OURS = TokenizerFile(FOLDER / "tokenizer.json")
THEIRS = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))

FRAGMENTS = [*added_tokens(), *"0123456789 \n<|>/+-*:é漢😀\x00\u2028", "10", "13", "25", "100", "<|e", "nd|>", "</"]
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.lists(st.sampled_from(FRAGMENTS)).map("".join)


def test_the_file_is_frozen() -> None:
    assert OURS.sha256 == FROZEN_SHA256, "the shipped weights name their ids; a changed file voids them"


def test_the_files_are_what_the_word_lists_say() -> None:
    assert (FOLDER / "tokenizer.json").read_bytes() == tokenizer_json().encode()
    assert (FOLDER / "tokenizer_config.json").read_bytes() == tokenizer_config_json().encode()
    assert (FOLDER / "special_tokens_map.json").read_bytes() == special_tokens_map_json().encode()


def test_ids_are_those_of_the_tokenizers_package_on_thousands_of_strings() -> None:
    rng = random.Random(7)
    for _ in range(5000):
        pieces = rng.choices(FRAGMENTS, k=rng.randrange(14))
        text = "".join(piece[rng.randrange(2) :] if rng.random() < 0.2 else piece for piece in pieces)
        THEIRS.encode_special_tokens = False
        assert OURS.encode(text, allow_special=True) == THEIRS.encode(text).ids, repr(text)
        THEIRS.encode_special_tokens = True
        assert OURS.encode(text) == THEIRS.encode(text).ids, repr(text)


@given(st.lists(st.integers(0, OURS.vocab_size - 1)))
def test_any_ids_decode_as_in_the_tokenizers_package(ids: list[int]) -> None:
    assert OURS.decode(ids) == THEIRS.decode(ids, skip_special_tokens=False)


@given(texts, st.booleans())
def test_decode_undoes_encode(text: str, allow_special: bool) -> None:
    assert OURS.decode(OURS.encode(text, allow_special=allow_special)) == text


@given(st.binary())
def test_every_byte_string_is_some_ids(raw: bytes) -> None:
    ids = [next(i for i in range(256) if OURS.token_bytes(i) == bytes([byte])) for byte in raw]
    assert OURS.decode_bytes(ids) == raw
    assert OURS.decode(ids) == raw.decode("utf-8", errors="replace")


def test_plain_text_cannot_forge_a_control_token() -> None:
    control_ids = {OURS.encode(token, allow_special=True)[0] for token in CONTROL_TOKENS}
    for token in CONTROL_TOKENS:
        assert len(OURS.encode(token, allow_special=True)) == 1
        assert control_ids.isdisjoint(OURS.encode(f"a{token} b{token}{token}"))


def test_lone_surrogates_are_replaced_and_pairs_are_joined() -> None:
    assert OURS.decode(OURS.encode("a\ud800b")) == "a\ufffdb"
    assert OURS.decode(OURS.encode("\ud83d\ude00")) == "😀"


def test_one_text_has_several_encodings() -> None:
    one, three, thirteen = OURS.encode("1"), OURS.encode("3"), OURS.encode("13")
    assert len(thirteen) == 1
    assert OURS.decode(one + three) == "13"


def test_every_name_tag_and_relation_is_one_id() -> None:
    single = [f" {name}" for name in (*FIRST_NAMES, *LAST_NAMES, "boss", "mayor", "record", "rumor")]
    single += [" <result>\n", "\n</result>", "<calc>", "</calc>", "<answer>", "</answer>", " : "]
    assert all(len(OURS.encode(text)) == 1 for text in single)
    assert len(FIRST_NAMES) == len(LAST_NAMES) == 48


def test_the_end_of_a_turn_is_the_eos() -> None:
    assert OURS.decode([OURS.eos_id]) == "<|end|>"
    assert OURS.vocab_size == THEIRS.get_vocab_size()


@pytest.mark.parametrize("token_id", [-1, OURS.vocab_size])
def test_an_unknown_id_is_refused(token_id: int) -> None:
    with pytest.raises(ValueError, match=str(token_id)):
        OURS.decode([token_id])


def test_callers_get_their_own_list() -> None:
    OURS.encode("make 12").append(0)
    assert OURS.encode("make 12") == OURS.encode("make 12")
    assert OURS.decode(OURS.encode("make 12")) == "make 12"


def test_threads_may_share_one_reader() -> None:
    wanted = {str(number): THEIRS.encode(str(number)).ids for number in range(500)}
    wrong: list[str] = []

    def read() -> None:
        wrong.extend(text for text, ids in wanted.items() if OURS.encode(text) != ids)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_codec_pickles_as_its_file() -> None:
    again = pickle.loads(pickle.dumps(TokenizerFile(FOLDER / "tokenizer.json", name="mine")))
    assert (again.name, again.sha256) == ("mine", OURS.sha256)
    assert again.encode("make 42") == OURS.encode("make 42")


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("normalizer", {"type": "NFC"}, "normalizer"),
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "use_regex"),
        ("model", {"type": "WordPiece"}, "BPE"),
        ("post_processor", {"type": "TemplateProcessing"}, "post_processor"),
    ],
)
def test_a_file_it_cannot_match_is_refused(tmp_path: Path, part: str, value: object, reason: str) -> None:
    whole = json.loads(tokenizer_json()) | {part: value}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=reason):
        TokenizerFile(tmp_path / "tokenizer.json")
