"""What the model of herds learns from. The digest is of what the shipped one was trained on."""

import hashlib
from collections import Counter
from itertools import islice
from random import Random

import pytest
from models.herds_episodes import ANSWER_LOSS, QUERY_STYLES, draw_demonstrations, search_page
from models.hops_episodes import observation_text
from models.pieces import Piece, encode_pieces

from ramify.core.format import AnswerAction, ToolAction
from ramify.engines.shipped import MODELS
from ramify.engines.tokenizer import TokenizerFile
from ramify.tasks.herds import (
    FORMAT,
    MAX_CALLS,
    NUM_HERDS,
    SPLITS,
    HerdsProblem,
    Split,
    numbers_found,
    score,
    split_of,
)

DIGEST = "5145be6bae5d489b6fbceb1e2741b3dc80d4144db54e5188003fe84686738131"
TOKENIZER = TokenizerFile(MODELS["builtin"] / "tokenizer.json")

Episode = tuple[HerdsProblem, list[Piece]]


def episodes(number: int, *, seed: int = 0, split: Split = "train") -> list[Episode]:
    return list(islice(draw_demonstrations(Random(seed), split=split), number))


def text_of(pieces: list[Piece]) -> str:
    """What follows the question."""
    return "".join(piece.text for piece in pieces[1:])


def said(pieces: list[Piece], kind: str) -> list[str]:
    return [piece.text for piece in pieces if piece.kind == kind]


def test_episodes_are_what_the_model_was_trained_on() -> None:
    digest = hashlib.sha256()
    for problem, pieces in episodes(200):
        shown = [(piece.kind, piece.text, piece.loss) for piece in pieces]
        digest.update(repr((problem, shown)).encode())
    assert digest.hexdigest() == DIGEST


def test_an_episode_is_what_a_run_would_show() -> None:
    for problem, pieces in episodes(50):
        assert pieces[0].text == f"<|user|>{problem.question}<|end|><|assistant|>"
        assert [piece.kind for piece in pieces] == ["prompt", *["model", "tool"] * (len(pieces) // 2 - 1), "model"]
        for turn, observation in zip(said(pieces, "model"), said(pieces, "tool"), strict=False):
            action = FORMAT.read(turn)
            assert isinstance(action, ToolAction)
            assert observation == observation_text(search_page(problem, action.arguments))


def test_every_episode_looks_all_herds_up_and_ends_right_within_the_calls() -> None:
    for problem, pieces in episodes(300):
        text = text_of(pieces)
        assert score(problem.question, text) == {"found": 1.0, "made": 1.0}
        assert isinstance(FORMAT.read(pieces[-1].text), AnswerAction)
        assert NUM_HERDS <= text.count("<search>") <= MAX_CALLS
        assert all(f" {kind}</search>" in text for kind in problem.kinds)


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_only_problems_of_the_split_are_demonstrated(split: Split) -> None:
    assert {split_of(problem) for problem, _ in episodes(500, split=split)} == {split}


def test_what_is_learnt_is_the_models_own_words() -> None:
    for _, pieces in episodes(50):
        assert {(piece.kind, piece.loss) for piece in pieces} == {
            ("prompt", 0.0),
            ("model", 1.0),
            ("tool", 0.0),
            ("model", ANSWER_LOSS),
        }


def test_queries_come_in_three_styles() -> None:
    counts: Counter[str] = Counter()
    for problem, pieces in episodes(400):
        for call in said(pieces, "model")[:-1]:
            words = call.removeprefix("<search> ").removesuffix("</search>").split()
            counts["record" if words[0] == "record" else "full" if words[0] == problem.town else "kind"] += 1
    assert set(counts) == set(QUERY_STYLES)
    for style, share in QUERY_STYLES.items():
        assert abs(counts[style] / counts.total() - share) < 0.04


def test_herds_are_looked_up_in_any_order() -> None:
    places: Counter[int] = Counter()
    for problem, pieces in episodes(400):
        first = said(pieces, "model")[0].removesuffix("</search>").split()[-1]
        places[problem.kinds.index(first)] += 1
    assert all(abs(places[place] / 400 - 1 / NUM_HERDS) < 0.08 for place in range(NUM_HERDS))


def test_a_herd_not_found_is_looked_up_again_or_left_unknown() -> None:
    drawn = episodes(400)
    num_found = Counter(len(numbers_found(problem.question, text_of(pieces))) for problem, pieces in drawn)
    assert num_found[NUM_HERDS] > num_found[NUM_HERDS - 1] > 0
    assert any(len(said(pieces, "tool")) == MAX_CALLS for _, pieces in drawn)


def test_one_seed_gives_the_same_episodes_and_another_others() -> None:
    assert episodes(20, seed=3) == episodes(20, seed=3)
    assert episodes(20, seed=3) != episodes(20, seed=4)


def test_episodes_are_short_and_long_before_the_answer() -> None:
    for _, pieces in episodes(200):
        assert len(encode_pieces(pieces, TOKENIZER)[0]) < 112
        turns = [len(TOKENIZER.encode(turn, allow_special=True)) for turn in said(pieces, "model")]
        assert sum(turns[:-1]) > 2 * turns[-1]
