import random
import re
from itertools import islice
from pathlib import Path

import pytest
from models.countdown_episodes import demonstration, draw_demonstrations
from models.pieces import encode_pieces

from ramify.engines.tokenizer import TokenizerFile
from ramify.tasks.countdown import MAX_CALLS, CountdownProblem, score, split_of

TOKENIZER = TokenizerFile(Path(__file__).parents[2] / "src" / "ramify" / "data" / "builtin" / "tokenizer.json")
PROBLEM = CountdownProblem((13, 7, 1, 5), 99)
STEPS = ("7+1", "13*8", "104-5")


def test_a_demonstration_reads_as_the_runner_shows_it() -> None:
    pieces = demonstration(PROBLEM, STEPS)
    assert [(piece.kind, piece.text) for piece in pieces] == [
        ("prompt", "<|user|>make 99 from 13 7 1 5<|end|><|assistant|>"),
        ("model", "<calc>7+1</calc>"),
        ("tool", " <result>\n8 : 13 5 8\n</result>"),
        ("model", "<calc>13*8</calc>"),
        ("tool", " <result>\n104 : 5 104\n</result>"),
        ("model", "<calc>104-5</calc>"),
        ("tool", " <result>\n99 : 99\n</result>"),
        ("model", "<answer>99</answer><|end|>"),
    ]


def test_everything_but_the_prompt_is_learnt() -> None:
    pieces = demonstration(PROBLEM, STEPS)
    ids, weights = encode_pieces(pieces, TOKENIZER)
    prompt = TOKENIZER.encode(pieces[0].text, allow_special=True)
    assert ids[: len(prompt)] == prompt
    assert weights == [0.0] * len(prompt) + [1.0] * (len(ids) - len(prompt))
    assert ids[-1] == TOKENIZER.eos_id


def test_a_wrong_call_is_shown_but_not_learnt() -> None:
    pieces = demonstration(PROBLEM, STEPS, wrong_step="9+1", wrong_at=1)
    assert [(piece.text, piece.loss) for piece in pieces[3:5]] == [
        ("<calc>9+1</calc>", 0.0),
        (" <result>\nerror: 9 is not left\n</result>", 1.0),
    ]
    assert pieces[5].text == "<calc>13*8</calc>"


@pytest.mark.slow
def test_no_held_out_problem_is_ever_demonstrated() -> None:
    drawn = islice(draw_demonstrations(random.Random(0)), 20_000)
    assert not [problem for problem, _ in drawn if split_of(problem) == "heldout"]


def test_every_demonstration_solves_its_problem_within_the_calls() -> None:
    for problem, pieces in islice(draw_demonstrations(random.Random(1), error_share=0.5), 1000):
        text = "".join(piece.text for piece in pieces[1:])
        assert score(problem.question, text) == {"reached": 1.0, "answered": 1.0}
        assert len(re.findall("<calc>", text)) <= MAX_CALLS


def test_the_share_of_errors_is_as_asked() -> None:
    drawn = list(islice(draw_demonstrations(random.Random(2), error_share=0.2), 2000))
    with_error = [pieces for _, pieces in drawn if any("error:" in piece.text for piece in pieces)]
    assert 0.16 < len(with_error) / len(drawn) < 0.24
    assert all(sum(piece.loss == 0 for piece in pieces) == 2 for pieces in with_error)


def test_demonstrations_are_short() -> None:
    drawn = islice(draw_demonstrations(random.Random(3)), 500)
    assert max(len(encode_pieces(pieces, TOKENIZER)[0]) for _, pieces in drawn) < 128
