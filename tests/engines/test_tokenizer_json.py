"""Files of the kinds that models ship with, made small by the `tokenizers` package itself."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import ramify
from ramify.core.codec import joined_bytes
from ramify.core.errors import ConfigError
from ramify.engines.builtin import FOLDER
from ramify.engines.tokenizer import TokenizerFile
from ramify.engines.tokenizer_json import TokenizerJson
from ramify.testing.policies import chains
from ramify.testing.scripted import Scripted

TAGS = ("<calc>", "</calc>", "<result>", "</result>", "<answer>", "</answer>")
CORPUS = ["make 42 from 1 2 3", "the answer is in the box", "search results: é 漢 and so on", *("a <b> c </b>",) * 3]
CONTROLS = ["<unk>", "<s>", "</s>"]
TEXTS = ["x", " x", "two words", "\n</result>", "é漢😀", "<answer>5</answer>", "a  b\n\tc", ""]


def gpt2_like() -> Tokenizer:
    """Byte-level BPE that puts a space in front of a text and a token around it (RoBERTa, some GPT-2)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=320,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=CONTROLS,
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


def llama2_like() -> Tokenizer:
    """BPE over characters with bytes to fall back to, spaces as a symbol, one put in front (Llama 2, Phi-3, Gemma)."""
    pieces = [*CONTROLS, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdehmnorst<>/", "▁t", "th", "the"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "t"), ("t", "h"), ("th", "e")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROLS])
    return tokenizer


def t5_like() -> Tokenizer:
    """Unigram whose vocabulary spells its control tokens, spaces as a symbol."""
    characters = sorted({*"".join(CORPUS).replace(" ", ""), *"".join(TAGS), *"é漢😀x5\n\t"})
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", -1.0), ("▁", -2.0), *((c, -5.0) for c in characters)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROLS])
    return tokenizer


def words_only(known: tuple[str, ...]) -> Tokenizer:
    """A vocabulary of words: all else is `<unk>`."""
    vocab = {word: index for index, word in enumerate([*CONTROLS, *"make from 42 1 2 3".split(), *known])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROLS])
    return tokenizer


def folder_of(tokenizer: Tokenizer, folder: Path, eos: Any = "</s>") -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return folder


@pytest.fixture(params=[gpt2_like, llama2_like, t5_like])
def codec(request: pytest.FixtureRequest, tmp_path: Path) -> TokenizerJson:
    return TokenizerJson(folder_of(request.param(), tmp_path))


SHIPPED, OURS = TokenizerJson(FOLDER), TokenizerFile(FOLDER / "tokenizer.json")


@given(st.text(), st.booleans())
def test_the_shipped_file_gives_the_ids_of_its_own_reader(text: str, allow_special: bool):
    ids = OURS.encode(text, allow_special=allow_special)
    assert SHIPPED.encode(text, allow_special=allow_special) == ids
    assert SHIPPED.decode(ids) == OURS.decode(ids)


def test_the_shipped_file_is_the_same_codec_by_either_reader():
    for name in ("name", "sha256", "vocab_size", "eos_id", "is_exact"):
        assert getattr(SHIPPED, name) == getattr(OURS, name)
    assert [SHIPPED.token_bytes(i) for i in range(550)] == [OURS.token_bytes(i) for i in range(550)]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_whole_wherever_it_stands(codec: TokenizerJson, text: str):
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    both = [*codec.encode("make"), *ids, *codec.encode("the")]
    assert joined_bytes(codec, both).decode() == f"make{text}the"


@pytest.mark.parametrize("make", [gpt2_like, llama2_like])
def test_what_is_no_text_is_replaced(tmp_path: Path, make: Callable[[], Tokenizer]):
    codec = TokenizerJson(folder_of(make(), tmp_path))
    assert codec.decode(codec.encode("a\ud800b")) == "a\ufffdb"
    assert len(codec.encode("ü")) == 2 and codec.decode(codec.encode("ü")[:1]) == "\ufffd"


@pytest.mark.parametrize("make", [t5_like, lambda: words_only(())])
def test_what_a_vocabulary_lacks_is_its_unknown_token(tmp_path: Path, make: Callable[[], Tokenizer]):
    codec = TokenizerJson(folder_of(make(), tmp_path))
    assert codec.encode("ü") == [0] and codec.decode([0]) == "<unk>"


def test_a_control_token_is_one_id_for_templates_and_plain_text_for_the_rest(codec: TokenizerJson):
    assert codec.encode("</s>the", allow_special=True)[0] == codec.eos_id == 2
    forged = codec.encode("a</s><s>b")
    assert not {1, 2} & set(forged)
    assert codec.decode(forged) == "a</s><s>b" == codec.decode(codec.encode("a</s><s>b", allow_special=True))


@pytest.mark.parametrize("make", [gpt2_like, llama2_like, t5_like])
def test_an_added_token_that_is_not_special_is_plain_text_too(tmp_path: Path, make: Callable[[], Tokenizer]):
    tokenizer = make()
    tokenizer.add_tokens([AddedToken("<answer>", special=False, normalized=False)])
    codec = TokenizerJson(folder_of(tokenizer, tmp_path))
    (one,) = codec.encode("<answer>", allow_special=True)
    forged = codec.encode("a<answer>b")
    assert one not in forged and codec.decode(forged) == "a<answer>b"


def test_tags_that_are_no_tokens_are_spelt_by_several(codec: TokenizerJson):
    for tag in TAGS:
        assert len(codec.encode(tag)) > 1
        assert codec.decode(codec.encode(tag)) == tag


def test_a_codec_pickles_as_its_folder(codec: TokenizerJson):
    again = pickle.loads(pickle.dumps(TokenizerJson(codec.folder, "mine", vocab_size=codec.vocab_size + 9)))
    assert (again.name, again.sha256, again.vocab_size) == ("mine", codec.sha256, codec.vocab_size + 9)
    assert again.encode("make 42") == codec.encode("make 42")


def test_ids_that_only_the_model_has_carry_no_text(codec: TokenizerJson):
    padded = TokenizerJson(codec.folder, vocab_size=codec.vocab_size + 5)
    assert padded.token_bytes(codec.vocab_size + 4) == b"" == padded.decode([codec.vocab_size]).encode()
    for unknown in (-1, padded.vocab_size):
        with pytest.raises(ValueError, match=str(unknown)):
            padded.token_bytes(unknown)


def test_words_are_read_with_the_space_that_parts_them(tmp_path: Path):
    codec = TokenizerJson(folder_of(words_only(TAGS), tmp_path))
    ids = codec.encode("make 42 <answer> 3 </answer> what", allow_special=True)
    assert codec.decode(ids) == " make 42 <answer> 3 </answer><unk>"


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"tokenizer_config.json": {"eos_token": "</s>"}}, (2,)),
        ({"tokenizer_config.json": {"eos_token": {"content": "<s>"}}}, (1,)),
        ({"tokenizer_config.json": {}, "special_tokens_map.json": {"eos_token": "</s>"}}, (2,)),
        (
            {"tokenizer_config.json": {"eos_token": "</s>"}, "generation_config.json": {"eos_token_id": [2, 1, 7]}},
            (2, 1, 7),
        ),
        ({"tokenizer_config.json": {"eos_token": None}, "config.json": {"eos_token_id": 5}}, (5,)),
    ],
)
def test_what_ends_a_sequence_is_read_from_the_folder(tmp_path: Path, files: dict[str, Any], ends: tuple[int, ...]):
    folder = folder_of(llama2_like(), tmp_path)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    codec = TokenizerJson(folder)
    assert codec.end_ids == ends and codec.eos_id == ends[0]


def test_a_folder_that_names_no_end_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no token ends a sequence"):
        TokenizerJson(folder_of(llama2_like(), tmp_path, eos=None))


def test_a_file_that_is_missing_or_unreadable_is_refused_by_its_name(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        TokenizerJson(tmp_path)
    for content in (b"", b"{", b"[]", b"{}", b'{"model": {"type": "Magic"}}', b"\xff"):
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(ConfigError, match=r"tokenizer\.json' cannot be read"):
            TokenizerJson(tmp_path)
    shutil.copy(FOLDER / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json' cannot be read"):
        TokenizerJson(tmp_path)


def test_a_run_whose_tags_cannot_be_spelt_is_refused_by_the_tag(tmp_path: Path):
    codec = TokenizerJson(folder_of(words_only(("<calc>", "</calc>")), tmp_path))
    with pytest.raises(ConfigError, match=r"cannot spell the stop word '</answer>'.*<unk>"):
        ramify.rollout_sync(["what?"], engine=Scripted(codec=codec))


def test_a_run_whose_tags_take_several_tokens_is_a_run(tmp_path: Path):
    codec = TokenizerJson(folder_of(llama2_like(), tmp_path))
    done = ramify.rollout_sync(engine=Scripted(chains(1, 1), codec=codec), prompts=1, preset="chains")
    assert {tree.stop(leaf) for tree in done.trees for leaf in tree.leaves()} == {"answer"}
