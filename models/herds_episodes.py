"""Demonstrations for herds: somebody who looks the herds up in any order and is at times too brief.

A query names town and kind, or the kind alone, which mostly finds another town's herd; then the herd is looked up again
or left unknown. Of the answers that the known numbers allow each is as likely. So the order, the query, whether to look
again and the answer are real choices. Only episodes that end right are kept. Owns what is learnt from: the model's own
words, never what the tool says. Pure: randomness comes from the generator handed in.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Final

from models.hops_episodes import observation_text
from models.pieces import Piece, prompt_piece

from ramify.tasks.herds import (
    MAX_CALLS,
    NUM_HERDS,
    HerdsProblem,
    Split,
    draw_problem,
    index_of,
    numbers_found,
    solutions,
    split_of,
)
from ramify.tools.search import joined_page

QUERY_STYLES: Final = {"full": 0.55, "record": 0.4, "kind": 0.05}
ANSWER_LOSS: Final = 6.0
"""Weight of the answer's tokens: there are a quarter as many as of the calls, and they are what is hard."""
AGAIN: Final = 0.5
"""Share of the herds not found at first that are looked up again, while calls are left for all others."""


def search_page(problem: HerdsProblem, query: str) -> str:
    """What the tool says to a query about the problem."""
    return joined_page(index_of(problem).search(query, 1))


def draw_demonstrations(
    rng: random.Random, *, num_herds: Sequence[int] = (NUM_HERDS,), split: Split = "train"
) -> Iterator[tuple[HerdsProblem, list[Piece]]]:
    """Endless demonstrations of one split's problems that end right; numbers of herds are equally likely."""
    while True:
        problem = draw_problem(rng, num_herds=rng.choice(num_herds))
        pieces = _demonstration(problem, rng) if split_of(problem) == split else None
        if pieces is not None:
            yield problem, pieces


def _demonstration(problem: HerdsProblem, rng: random.Random) -> list[Piece] | None:
    """One try of the demonstrator; None if the numbers it has found make no answer."""
    pieces = [prompt_piece(problem.question)]
    num_spare = MAX_CALLS - len(problem.kinds)
    for kind in rng.sample(problem.kinds, len(problem.kinds)):
        page = _search(problem, _query(problem.town, kind, rng), pieces)
        is_missed = not page.startswith(f"record {problem.town} ")
        if is_missed and num_spare and rng.random() < AGAIN:
            num_spare -= 1
            _search(problem, f"{problem.town} {kind}", pieces)
    found = numbers_found(problem.question, "".join(piece.text for piece in pieces[1:]))
    answers = solutions(list(found.values()), problem.target)
    if not answers:
        return None
    return [*pieces, Piece("model", f"<answer>{rng.choice(answers)}</answer><|end|>", loss=ANSWER_LOSS)]


def _search(problem: HerdsProblem, query: str, pieces: list[Piece]) -> str:
    """Append a call and its page; return the page."""
    page = search_page(problem, query)
    pieces += [
        Piece("model", f"<search> {query}</search>", loss=1.0),
        Piece("tool", observation_text(page), loss=0.0),
    ]
    return page


def _query(town: str, kind: str, rng: random.Random) -> str:
    (style,) = rng.choices(list(QUERY_STYLES), list(QUERY_STYLES.values()))
    return {"full": f"{town} {kind}", "record": f"record {town} {kind}", "kind": kind}[style]
