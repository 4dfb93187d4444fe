import hashlib
import os
import subprocess
import sys
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.tasks.hops_world import (
    FIRST_NAMES,
    HELDOUT_PERCENT,
    LAST_NAMES,
    NUM_PEOPLE,
    NUM_TOWNS,
    PERSON_RELATIONS,
    PETS,
    RELATIONS,
    SPLITS,
    TO_PERSON,
    TOWNS,
    HopsWorld,
    Split,
    people_of,
    split_of,
    world,
    world_name,
)

worlds = st.builds(world_name, st.sampled_from(SPLITS), st.integers(0, 1000), st.integers(0, 50)).map(world)

DIGEST = "fff29b3eb996d641f651b992defccfe1474040c994b4d7b04bb0276e8d883835"
"""Of `printed`: what the built-in model was trained on."""


def printed() -> str:
    """All of some worlds, hashed."""
    shown = [repr((w.people, list(w.facts.items()), w.passages)) for w in map(world, some_names())]
    return hashlib.sha256("".join(shown).encode()).hexdigest()


def some_names() -> list[str]:
    return [world_name(split, seed, index) for split, seed, index in product(SPLITS, (0, 7), (0, 3))]


def test_every_name_is_a_word_of_its_own() -> None:
    words = [*FIRST_NAMES, *LAST_NAMES, *TOWNS, *PETS, *RELATIONS, "record", "rumor"]
    assert len(set(words)) == len(words) == 48 + 48 + 24 + 24 + 7 + 2
    assert all(word.isalpha() and word.islower() for word in words)


def test_everybody_is_on_one_side_and_about_a_fifth_is_held_out() -> None:
    everybody = {f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES}
    train, heldout = set(people_of("train")), set(people_of("heldout"))
    assert train | heldout == everybody
    assert not train & heldout
    assert abs(100 * len(heldout) / len(everybody) - HELDOUT_PERCENT) < 2


def test_the_split_is_frozen() -> None:
    assert len(people_of("heldout")) == 452
    assert people_of("heldout")[:3] == ("fikol rekent", "fikol rekerd", "fikol rekump")


@given(worlds)
def test_a_world_holds_people_of_one_side_only(among: HopsWorld) -> None:
    split = among.name.split()[0]
    named = {*among.people, *(value for (_, relation), value in among.facts.items() if relation in TO_PERSON)}
    assert {split_of(person) for person in named} == {split}
    for passage in among.passages:
        words = passage.split()
        pairs = {" ".join(pair) for pair in pairwise(words)}
        people = {pair for pair in pairs if pair.split()[0] in FIRST_NAMES and pair.split()[1] in LAST_NAMES}
        assert all(split_of(person) == split for person in people)


@given(worlds)
def test_everything_about_everybody_is_told(among: HopsWorld) -> None:
    towns = {subject for subject, relation in among.facts if relation == "mayor"}
    assert len(set(among.people)) == NUM_PEOPLE
    assert len(towns) == NUM_TOWNS
    assert set(among.facts) == {*product(among.people, PERSON_RELATIONS), *product(towns, ["mayor"])}
    for (subject, relation), value in among.facts.items():
        values = PETS if relation == "pet" else towns if relation == "town" else among.people
        assert value in values
        assert value != subject


@given(worlds)
def test_every_fact_has_one_record_and_rumors_are_never_true(among: HopsWorld) -> None:
    records = [f"record {subject} {relation} {value}" for (subject, relation), value in among.facts.items()]
    rumors = [p for p in among.passages if p.startswith("rumor ")]
    assert sorted(among.passages) == sorted([*records, *rumors])
    assert len(set(among.passages)) == len(among.passages)
    for (subject, relation), value in among.facts.items():
        told = [p for p in rumors if p.startswith(f"rumor {subject} {relation} ")]
        assert len(told) <= 2
        assert f"rumor {subject} {relation} {value}" not in told


def test_a_chain_of_relations_is_followed_to_its_end() -> None:
    among = HopsWorld("w", ("a b",), {("a b", "town"): "norford", ("norford", "mayor"): "c d"}, ())
    assert among.follow("a b", ["town", "mayor"]) == "c d"
    assert among.follow("a b", []) == "a b"
    assert among.relations_of("a b") == ("town",)
    assert among.relations_of("cat") == ()
    with pytest.raises(KeyError):
        among.follow("c d", ["boss"])


@pytest.mark.parametrize("name", ["", "train", "heldout ", "test 0 3", "0"])
def test_any_other_name_is_no_world(name: str) -> None:
    with pytest.raises(ValueError, match="is no world"):
        world(name)


@pytest.mark.parametrize("split", SPLITS)
def test_worlds_of_other_names_differ(split: Split) -> None:
    assert len({world(world_name(split, seed, index)).passages for seed, index in product(range(5), range(5))}) == 25


def test_a_world_is_what_the_model_was_trained_on() -> None:
    assert printed() == DIGEST


def test_a_world_is_the_same_in_another_process() -> None:
    script = "from tests.tasks.test_hops_world import printed; print(printed())"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, env=environment)
    assert run.stdout.strip() == printed()
