"""What the built-in model learns hops from. The digest is of what the shipped model was trained on."""

import hashlib
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random

import pytest
from models.hops_episodes import (
    MAX_SEARCHES,
    QUERY_STYLES,
    TOOL_LOSS,
    HopsMix,
    draw_demonstrations,
    observation_text,
    search_page,
)
from models.pieces import Piece

from ramify.core.format import AnswerAction, InvalidAction, ToolAction
from ramify.tasks.hops import FORMAT, MAX_HOPS, TOP_K, HopsProblem
from ramify.tasks.hops_world import SPLITS, Split, split_of, world, world_name

MIX = HopsMix((1, 2, 3), error_share=0.1)
NARROW_PAGE = 2
DIGESTS: dict[tuple[Split, int], str] = {
    ("train", TOP_K): "1fe1ebb13e62c2e866fc9aac087f5dc0161f743d76ef4bbd8eb0d8cb5343a69b",
    ("heldout", TOP_K): "313d17b20da41ca18d4e2d23a7444fba218943f89f8e1c7e4c1bcb8a42a043cc",
    ("train", NARROW_PAGE): "edea48c49523f9d534c49a8ec90ae230299d5a20af50f66d5ef14eca66bb7604",
    ("heldout", NARROW_PAGE): "0af805a7f9c03c64a837879c82ce3a445e0552e8e5d5c442ce1d254b81190b22",
}
PAGES_DIGESTS = {
    TOP_K: "13a235869d8237d19746b2553583d3195f877c1b3f7e65d0fd8a151f37aa4e87",
    NARROW_PAGE: "390e08db52111324bf097f47a3b0a58bd5ae875a8867d27456e59f64fb4459f0",
}

Episode = tuple[HopsProblem, list[Piece]]


def episodes(number: int, mix: HopsMix = MIX, *, seed: int = 0, split: Split = "train") -> list[Episode]:
    return list(islice(draw_demonstrations(Random(seed), mix, split=split), number))


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def said(pieces: list[Piece], kind: str) -> list[str]:
    return [piece.text for piece in pieces if piece.kind == kind]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("top_k", [TOP_K, NARROW_PAGE])
def test_episodes_are_what_the_model_was_trained_on(split: Split, top_k: int) -> None:
    digest = hashlib.sha256()
    for problem, pieces in episodes(200, replace(MIX, top_k=top_k), split=split):
        shown = [(piece.kind, piece.text, piece.loss) for piece in pieces]
        digest.update(repr((problem.world, problem.subject, problem.relations, shown)).encode())
    assert digest.hexdigest() == DIGESTS[split, top_k]


@pytest.mark.parametrize("top_k", [TOP_K, NARROW_PAGE])
def test_pages_are_what_the_model_was_trained_on(top_k: int) -> None:
    digest = hashlib.sha256()
    for seed in range(5):
        among = world(world_name("heldout", seed, 0))
        for subject, relation in among.facts:
            problem = HopsProblem(among.name, subject, (relation,))
            for query in (f"{subject} {relation}", f"record {subject.split()[0]}", f"{relation}, rumor?", "", "nobody"):
                digest.update(search_page(problem, query, top_k=top_k).encode() + b"\n")
    assert digest.hexdigest() == PAGES_DIGESTS[top_k]


def test_an_episode_is_what_a_run_would_show() -> None:
    for problem, pieces in episodes(50):
        assert pieces[0].text == f"<|user|>{problem.question}<|end|><|assistant|>"
        assert [piece.kind for piece in pieces] == ["prompt", *["model", "tool"] * (len(pieces) // 2 - 1), "model"]
        for turn, observation in zip(said(pieces, "model"), said(pieces, "tool"), strict=False):
            match FORMAT.read(turn):
                case ToolAction("search", query) if query:
                    assert observation == observation_text(search_page(problem, query))
                case ToolAction() | InvalidAction():
                    assert observation == FORMAT.invalid == observation_text("", status="invalid")
                case other:
                    raise AssertionError(other)


@pytest.mark.parametrize("num_hops", range(1, MAX_HOPS + 1))
def test_every_episode_ends_right_within_the_searches(num_hops: int) -> None:
    for problem, pieces in episodes(100, HopsMix((num_hops,))):
        assert len(problem.relations) == num_hops
        assert FORMAT.read(pieces[-1].text) == AnswerAction(problem.answer)
        assert pieces[-1].text == f"<answer> {problem.answer}</answer><|end|>"
        assert num_hops <= text_of(pieces).count("<search>") <= MAX_SEARCHES


@pytest.mark.parametrize("split", SPLITS)
def test_an_episode_names_people_of_its_split_only(split: Split) -> None:
    for problem, pieces in episodes(100, split=split):
        assert problem.world.startswith(split)
        people = world(problem.world).people
        assert {split_of(person) for person in people} == {split}
        told = re.findall(r"(?:record|rumor) (\w+ \w+) (?:boss|friend|rival|teacher|town|pet) ", text_of(pieces))
        assert set(told) <= set(people)


def test_what_is_learnt_is_the_models_words_and_a_little_of_the_tools() -> None:
    for _, pieces in episodes(100, HopsMix((1, 2, 3))):
        assert {(piece.kind, piece.loss) for piece in pieces} == {("prompt", 0.0), ("model", 1.0), ("tool", TOOL_LOSS)}


@pytest.mark.slow
def test_the_share_of_wrong_calls_is_as_asked_and_they_are_not_learnt() -> None:
    drawn = episodes(1000, HopsMix((1, 2), error_share=0.2), seed=1)
    wrong = [pieces for _, pieces in drawn if FORMAT.invalid in said(pieces, "tool")]
    assert 0.16 < len(wrong) / len(drawn) < 0.24
    for pieces in wrong:
        unlearnt = [piece.text for piece in pieces[1:] if piece.loss == 0]
        assert len(unlearnt) == 2
        assert unlearnt[1] == FORMAT.invalid


def test_queries_come_in_four_styles() -> None:
    drawn = episodes(500, HopsMix((1,)))
    counts = Counter(style_of(said(pieces, "model")[0], problem) for problem, pieces in drawn)
    assert set(counts) == set(QUERY_STYLES)
    for style, share in QUERY_STYLES.items():
        assert abs(counts[style] / len(drawn) - share) < 0.08


def style_of(search: str, problem: HopsProblem) -> str:
    first, last = problem.subject.split()
    (relation,) = problem.relations
    queries = {
        "full": f"{first} {last} {relation}",
        "record": f"record {first} {last} {relation}",
        "first": f"{first} {relation}",
        "last": f"{last} {relation}",
    }
    (style,) = [style for style, query in queries.items() if search == f"<search> {query}</search>"]
    return style


def test_a_record_is_believed_at_once_and_without_one_the_search_goes_on() -> None:
    drawn = episodes(500, HopsMix((1,)), seed=2)
    assert any(len(said(pieces, "tool")) > 1 for _, pieces in drawn)
    for problem, pieces in drawn:
        record = f"record {problem.subject} {problem.relations[0]} {problem.answer}"
        *before, last = said(pieces, "tool")
        assert record in last
        assert all(record not in page for page in before)


def test_one_seed_gives_the_same_episodes_and_another_others() -> None:
    assert episodes(20, seed=3) == episodes(20, seed=3)
    assert episodes(20, seed=3) != episodes(20, seed=4)


def test_episodes_are_short() -> None:
    assert max(len(text_of(pieces).split()) for _, pieces in episodes(200)) < 200
