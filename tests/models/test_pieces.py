from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.pieces import Piece, encode_pieces, prompt_piece

from ramify.core.problem import Problem
from ramify.engines.tokenizer import TokenizerFile
from ramify.formats.arpo import arpo
from ramify.formats.search_r1 import SEARCH_R1

TOKENIZER = TokenizerFile(Path(__file__).parents[2] / "src" / "ramify" / "data" / "builtin" / "tokenizer.json")
PIECES = [
    prompt_piece("make 99 from 13 7"),
    Piece("model", "<calc>13*7</calc>", loss=1.0),
    Piece("tool", " <result>\n91 : 91\n</result>", loss=0.2),
    Piece("model", "<answer>91</answer><|end|>", loss=0.5),
]

pieces = st.builds(Piece, st.sampled_from(["prompt", "model", "tool"]), st.text(max_size=20), st.floats(0, 1))


def test_the_prompt_is_what_the_tag_formats_open_with() -> None:
    opened = {"".join(span.text for span in f.open(Problem("p", "why ?"))) for f in (arpo({"a": "a"}), SEARCH_R1)}
    assert opened == {prompt_piece("why ?").text}
    assert prompt_piece("why ?").loss == 0


@pytest.mark.slow
@given(st.lists(pieces, max_size=5))
def test_pieces_are_encoded_one_by_one_and_weigh_what_they_say(drawn: list[Piece]) -> None:
    ids, weights = encode_pieces(drawn, TOKENIZER)
    apart = [TOKENIZER.encode(piece.text, allow_special=piece.kind != "tool") for piece in drawn]
    assert ids == [token for piece_ids in apart for token in piece_ids]
    losses = [piece.loss for piece, piece_ids in zip(drawn, apart, strict=True) for _ in piece_ids]
    assert weights == losses


def test_an_episode_decodes_to_its_text() -> None:
    ids, _ = encode_pieces(PIECES, TOKENIZER)
    assert TOKENIZER.decode(ids) == "".join(piece.text for piece in PIECES)
    assert ids[-1] == TOKENIZER.eos_id


def test_a_tool_cannot_forge_a_control_token() -> None:
    said, _ = encode_pieces([Piece("tool", "<|end|>", loss=0.2)], TOKENIZER)
    meant, _ = encode_pieces([Piece("model", "<|end|>", loss=1.0)], TOKENIZER)
    assert meant == [TOKENIZER.eos_id]
    assert TOKENIZER.eos_id not in said
