"""Made-up worlds for multi-hop questions: sixteen people, six towns, and passages about them.

It owns the facts, their passages and the split. Every fact has one `record`, which is true, and up to two `rumor`s,
which are false. A hash of the name alone decides the split of a person, and all people of a world are of one split. So
no fact, question or near miss of a held-out world appears in training. A world is a pure function of its name: it is
the same in every process.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

Split = Literal["train", "heldout"]
SPLITS: Final[tuple[Split, ...]] = ("train", "heldout")

NUM_PEOPLE: Final = 16
NUM_TOWNS: Final = 6
HELDOUT_PERCENT: Final = 20
RUMOR_WEIGHTS: Final = (0.4, 0.35, 0.25)
"""Shares of facts with no, one and two rumors."""


def _joined(heads: str, tails: str) -> tuple[str, ...]:
    return tuple(head + tail for head in heads.split() for tail in tails.split())


FIRST_NAMES: Final = _joined("fi re po la zu mo ke da", "kol ban mir tus vel gop")
LAST_NAMES: Final = _joined("rek pob laz zub mon ked dar gul", "ent erd isk olm ard ump")
TOWNS: Final = _joined("nor sel bru hav wim tor", "ford wick stead dale")
PETS: Final = tuple(
    """cat dog owl fox hen cow pig rat ant bee crab duck frog goat hare lynx mole newt pony seal swan toad wolf
    yak""".split()
)
TO_PERSON: Final = ("boss", "friend", "rival", "teacher")
PERSON_RELATIONS: Final = (*TO_PERSON, "town", "pet")
RELATIONS: Final = (*PERSON_RELATIONS, "mayor")


@dataclass(frozen=True, slots=True)
class HopsWorld:
    """Facts: (subject, relation) -> value; and all passages, in the order in which they are indexed."""

    name: str
    people: tuple[str, ...]
    facts: Mapping[tuple[str, str], str]
    passages: tuple[str, ...]

    def relations_of(self, subject: str) -> tuple[str, ...]:
        """Relations that can be asked of `subject`; a pet has none."""
        return tuple(relation for relation in RELATIONS if (subject, relation) in self.facts)

    def follow(self, subject: str, relations: Sequence[str]) -> str:
        """The end of a chain of relations. Raises KeyError if a fact does not exist."""
        for relation in relations:
            subject = self.facts[subject, relation]
        return subject


def split_of(person: str) -> Split:
    """The split of a person; it depends only on the name."""
    digest = hashlib.sha256(f"hops {person}".encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % 100 < HELDOUT_PERCENT else "train"


@lru_cache
def people_of(split: Split) -> tuple[str, ...]:
    """All people of one split, in a fixed order."""
    names = (f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES)
    return tuple(name for name in names if split_of(name) == split)


def world_name(split: Split, seed: int, index: int) -> str:
    """Name of the `index`-th world of a seed."""
    return f"{split} {seed} {index}"


@lru_cache(maxsize=256)
def world(name: str) -> HopsWorld:
    """The world with this `name`, as `world_name` makes it. Raises ValueError for other names."""
    split, _, rest = name.partition(" ")
    if split not in SPLITS or not rest:
        raise ValueError(f"{name!r} is no world; a world is called like 'heldout 0 3': split, seed, number")
    rng = random.Random(f"hops {name}")
    people = tuple(rng.sample(people_of(split), NUM_PEOPLE))
    towns = tuple(rng.sample(TOWNS, NUM_TOWNS))
    facts: dict[tuple[str, str], str] = {}
    passages: list[str] = []
    subjects = [(person, relation) for person in people for relation in PERSON_RELATIONS]
    for subject, relation in [*subjects, *((town, "mayor") for town in towns)]:
        values = PETS if relation == "pet" else towns if relation == "town" else people
        told = rng.sample([value for value in values if value != subject], 3)
        (num_rumors,) = rng.choices((0, 1, 2), RUMOR_WEIGHTS)
        facts[subject, relation] = told[0]
        passages.append(f"record {subject} {relation} {told[0]}")
        passages += [f"rumor {subject} {relation} {value}" for value in told[1 : 1 + num_rumors]]
    rng.shuffle(passages)
    return HopsWorld(name, people, facts, tuple(passages))
