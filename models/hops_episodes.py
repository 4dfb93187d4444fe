"""Demonstrations for hops in the `search_r1` format: somebody who searches in several ways and believes some rumors.

Every hop is asked for by one of four kinds of query. A record is believed; a lone rumor is believed three times in
five; otherwise the same hop is searched again. So which query, which passage and whether to search again are real
choices, and a better policy than the demonstrator exists. Only episodes that end right are kept. Owns what is learnt
from: the model's own words wholly, what the tool says a little, never a call that was made wrong on purpose. Pure:
randomness comes from the generator handed in.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from models.pieces import Piece, prompt_piece

from ramify.core.format import AnswerAction, ToolAction
from ramify.core.segment import ToolStatus
from ramify.core.tool import ToolResult
from ramify.tasks.hops import FORMAT, PROBLEMS_A_WORLD, TOP_K, HopsProblem, draw_problem, index_of
from ramify.tasks.hops_world import Split, world, world_name
from ramify.tools.search import joined_page

MAX_SEARCHES: Final = 6
TOOL_LOSS: Final = 0.2
"""Weight of a passage's tokens: made up, so mostly not to be learnt; a little keeps copying sharp."""
LONE_RUMOR_BELIEF: Final = 0.6
QUERY_STYLES: Final = {"full": 0.5, "record": 0.2, "first": 0.15, "last": 0.15}


@dataclass(frozen=True, slots=True)
class HopsMix:
    """What questions are drawn: numbers of hops, equally likely, and how many passages a page shows."""

    num_hops: tuple[int, ...]
    error_share: float = 0.0
    top_k: int = TOP_K


def search_page(problem: HopsProblem, query: str, *, top_k: int = TOP_K) -> str:
    """What the tool says to a query in the problem's world."""
    return joined_page(index_of(problem.world).search(query, top_k))


def observation_text(text: str, *, status: ToolStatus = "ok") -> str:
    """A tool's text as it enters the transcript."""
    action = AnswerAction("") if status == "invalid" else ToolAction("search", "")
    return "".join(span.text for span in FORMAT.observe(action, ToolResult(text, status)))


def draw_demonstrations(
    rng: random.Random, mix: HopsMix, *, split: Split = "train"
) -> Iterator[tuple[HopsProblem, list[Piece]]]:
    """Endless demonstrations that end right, a new world every few; `error_share` of them hold one empty call."""
    while True:
        among = world(world_name(split, rng.getrandbits(40), 0))
        for _ in range(PROBLEMS_A_WORLD):
            problem = draw_problem(rng, among, rng.choice(mix.num_hops))
            pieces = _demonstration(problem, rng, mix.top_k)
            if pieces is None:
                continue
            if rng.random() < mix.error_share:
                at = rng.randrange(1, len(pieces), 2)
                pieces[at:at] = [
                    Piece("model", rng.choice(("<search></search>", "<search> </search>", "</answer>")), loss=0.0),
                    Piece("tool", observation_text("", status="invalid"), loss=0.0),
                ]
            yield problem, pieces


def _demonstration(problem: HopsProblem, rng: random.Random, top_k: int) -> list[Piece] | None:
    """One try of the demonstrator; None if it ends wrong or searches too often."""
    pieces = [prompt_piece(problem.question)]
    place = problem.subject
    num_left = MAX_SEARCHES
    for relation in problem.relations:
        found: str | None = None
        while found is None:
            if num_left == 0:
                return None
            num_left -= 1
            query = _query(place, relation, rng)
            page = search_page(problem, query, top_k=top_k)
            pieces.append(Piece("model", f"<search> {query}</search>", loss=1.0))
            pieces.append(Piece("tool", observation_text(page), loss=TOOL_LOSS))
            found = _believed(page.split(" ; "), f"{place} {relation} ", rng)
        place = found
    if place != problem.answer:
        return None
    return [*pieces, Piece("model", f"<answer> {place}</answer><|end|>", loss=1.0)]


def _query(subject: str, relation: str, rng: random.Random) -> str:
    (style,) = rng.choices(list(QUERY_STYLES), list(QUERY_STYLES.values()))
    words = subject.split()
    match style:
        case "record":
            return f"record {subject} {relation}"
        case "first":
            return f"{words[0]} {relation}"
        case "last":
            return f"{words[-1]} {relation}"
        case _:
            return f"{subject} {relation}"


def _believed(passages: Sequence[str], fact: str, rng: random.Random) -> str | None:
    """The value somebody takes from a page for a fact; None = search again."""
    records = [p.removeprefix(f"record {fact}") for p in passages if p.startswith(f"record {fact}")]
    rumors = [p.removeprefix(f"rumor {fact}") for p in passages if p.startswith(f"rumor {fact}")]
    if records:
        return records[0]
    return rumors[0] if len(rumors) == 1 and rng.random() < LONE_RUMOR_BELIEF else None
