import random

from ramify.tools.seen_ids import SMALLEST, SeenIds


def test_an_id_is_known_by_the_line_it_came_in_first() -> None:
    seen = SeenIds()
    assert [seen.first_line(uid, line) for line, uid in enumerate("abacb", start=1)] == [1, 2, 1, 4, 2]
    assert len(seen) == 3


def test_ids_are_told_apart_however_often_the_table_has_grown() -> None:
    seen, ids = SeenIds(), [f"id {number}" for number in range(20 * SMALLEST)]
    assert [seen.first_line(uid, line) for line, uid in enumerate(ids, start=1)] == list(range(1, len(ids) + 1))
    again = random.Random(0).sample(range(len(ids)), 500)
    assert [seen.first_line(ids[n], 0) for n in again] == [n + 1 for n in again]
    assert len(seen) == len(ids)
