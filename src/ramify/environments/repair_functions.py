"""Repair functions: the functions of which made-up repositories consist, and the bugs that may be planted in each.

A docstring says all that a function must do, so a repair needs nothing else. `{k}` in a source is a constant that the
seed draws, and `{other}` in a bug is another one. A bug replaces a text of the source by another, which changes some
results and never makes a function hang.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Arguments = Callable[[random.Random, Any], tuple[Any, ...]]
"""Draws arguments of a call; gets the function's constant, or that of the first function that it uses."""

WORDS: Final = ("Amber", "birch", "Coral", "dune", "Ember", "fjord", "Grove", "heath", "Iris", "jade")


@dataclass(frozen=True, slots=True)
class RepairFunction:
    """A function of a repository."""

    module: str
    name: str
    source: str
    bugs: tuple[tuple[str, str], ...]
    """What is right, and what is wrong instead."""
    arguments: Arguments
    constants: tuple[Any, ...] = (None,)
    uses: tuple[str, ...] = ()
    """Names of functions of other modules that it calls."""


def _phrase(rng: random.Random, gaps: tuple[str, ...] = (" ", "  ")) -> str:
    words = rng.sample(WORDS, rng.randint(1, 4))
    return "".join(word + rng.choice(gaps) for word in words[:-1]) + words[-1]


def _padded(rng: random.Random, text: str) -> str:
    return rng.choice(("", " ")) + text + rng.choice(("", "  "))


def _numbers(rng: random.Random, fewest: int = 0) -> list[int]:
    return [rng.randint(-9, 30) for _ in range(rng.randint(fewest, 7))]


def _optional(rng: random.Random, *choices: Any) -> tuple[Any, ...]:
    """An argument that may be left out."""
    return (rng.choice(choices),) if rng.random() < 0.3 else ()


def _settings(rng: random.Random, sep: str) -> str:
    return sep.join(
        f"{_padded(rng, key.lower())}={_padded(rng, str(rng.randint(0, 99)))}" for key in rng.sample(WORDS, 3)
    )


def _durations(rng: random.Random) -> list[str]:
    return [f"{rng.randint(0, 20)}:{rng.randint(0, 59):02}" for _ in range(rng.randint(1, 4))]


FUNCTIONS: Final = (
    RepairFunction(
        "text",
        "slug",
        'def slug(title, sep={k!r}):\n    """The words of a title in lower case, joined by `sep` (default {k!r})."""\n'
        "    return sep.join(title.lower().split())\n",
        (("title.lower()", "title"), (".split()", '.split(" ")'), ("sep={k!r}", "sep={other!r}")),
        lambda rng, k: (_phrase(rng), *_optional(rng, "+", "/")),
        ("-", "_", ".", ":"),
    ),
    RepairFunction(
        "text",
        "initials",
        'def initials(name):\n    """The first letter of each word, in upper case: `Ann de Wit` gives `ADW`."""\n'
        '    return "".join(word[0].upper() for word in name.split())\n',
        (("word[0]", "word[-1]"), (".upper()", "")),
        lambda rng, k: (_phrase(rng),),
    ),
    RepairFunction(
        "text",
        "shorten",
        'def shorten(text, width={k}):\n    """A text of at most `width` letters (default {k}); a longer one is cut '
        'and ends in `~`."""\n    if len(text) <= width:\n        return text\n'
        '    return text[: width - 1] + "~"\n',
        (("<=", "<"), ("width - 1", "width"), ("width={k}", "width={other}")),
        lambda rng, k: ("abcdefghijklmnopqrstuvwxyz"[: rng.randint(k - 2, k + 5)], *_optional(rng, k - 1, k + 2)),
        (6, 7, 8, 9, 10, 11, 12),
    ),
    RepairFunction(
        "lists",
        "chunks",
        'def chunks(items, size={k}):\n    """Lists of `size` items (default {k}); the last may be shorter."""\n'
        "    return [items[i : i + size] for i in range(0, len(items), size)]\n",
        (("i + size]", "i + size - 1]"), ("range(0,", "range(1,"), ("size={k}", "size={other}")),
        lambda rng, k: (_numbers(rng, 3), *_optional(rng, 2, 4)),
        (2, 3, 4),
    ),
    RepairFunction(
        "lists",
        "unique",
        'def unique(items):\n    """Every item once, in the order in which they first come."""\n    seen = []\n'
        "    for item in items:\n        if item not in seen:\n            seen.append(item)\n    return seen\n",
        (("seen.append(item)", "seen.insert(0, item)"), ("return seen", "return sorted(seen)")),
        lambda rng, k: ([rng.randint(0, 5) for _ in range(rng.randint(2, 8))],),
    ),
    RepairFunction(
        "lists",
        "top",
        'def top(items, num={k}):\n    """The `num` largest items (default {k}), the largest first."""\n'
        "    return sorted(items, reverse=True)[:num]\n",
        (("reverse=True", "reverse=False"), ("[:num]", "[: num - 1]"), ("num={k}", "num={other}")),
        lambda rng, k: (_numbers(rng, k), *_optional(rng, 1, 2)),
        (2, 3, 4),
    ),
    RepairFunction(
        "numbers",
        "clamp",
        'def clamp(value, low=0, high={k}):\n    """The value, or the nearer bound if it lies outside `low` to `high` '
        '(default 0 to {k})."""\n    return max(low, min(value, high))\n',
        (("max(low, min(value, high))", "min(low, max(value, high))"), ("min(value, high)", "min(value, high - 1)")),
        lambda rng, k: (rng.randint(-k, 2 * k), *_optional(rng, -3, 2)),
        (5, 10, 20, 50, 100),
    ),
    RepairFunction(
        "numbers",
        "mean",
        'def mean(values):\n    """The mean of some numbers; 0.0 if there are none."""\n'
        "    return sum(values) / len(values) if values else 0.0\n",
        (("sum(values) / len(values)", "sum(values) // len(values)"), ("len(values)", "(len(values) + 1)")),
        lambda rng, k: (_numbers(rng),),
    ),
    RepairFunction(
        "numbers",
        "discounted",
        'def discounted(price, percent={k}):\n    """The price less `percent` of it (default {k}), in whole cents. The '
        'discount is rounded down."""\n    return price - price * percent // 100\n',
        (("price - price", "price + price"), ("percent={k}", "percent={other}"), ("// 100", "// 10")),
        lambda rng, k: (rng.randint(100, 9999), *_optional(rng, 1, 50)),
        (5, 8, 10, 12, 15, 20),
    ),
    RepairFunction(
        "parsing",
        "settings",
        'def settings(line, sep={k!r}):\n    """A dict of `key = value` pairs between `sep` (default {k!r}), as texts '
        'without space around them."""\n    found = {{}}\n    for part in line.split(sep):\n'
        '        key, _, value = part.partition("=")\n        found[key.strip()] = value.strip()\n    return found\n',
        (
            ("[key.strip()]", "[key]"),
            ("value.strip()", "value"),
            ("found[key.strip()] = value.strip()", "found[value.strip()] = key.strip()"),
            ("sep={k!r}", "sep={other!r}"),
        ),
        lambda rng, k: (_settings(rng, k),) if rng.random() < 0.8 else (_settings(rng, "&"), "&"),
        (";", ",", "|"),
    ),
    RepairFunction(
        "parsing",
        "duration",
        'def duration(text):\n    """Seconds of a text `MINUTES:SECONDS`."""\n    minutes, seconds = text.split(":")\n'
        "    return int(minutes) * 60 + int(seconds)\n",
        (("* 60", "* 100"), ("minutes, seconds =", "seconds, minutes ="), ("60 + int", "60 - int")),
        lambda rng, k: (_durations(rng)[0],),
    ),
    RepairFunction(
        "parsing",
        "amounts",
        'def amounts(line):\n    """The whole numbers of a line, which stand between {k!r}; blanks are left out."""\n'
        "    return [int(part) for part in line.split({k!r}) if part.strip()]\n",
        ((" if part.strip()", " if part"), ("split({k!r})", "split({k!r})[1:]"), ("int(part)", "abs(int(part))")),
        lambda rng, k: (k.join(rng.choice((str(rng.randint(-9, 40)), "", " ")) for _ in range(rng.randint(3, 7))),),
        (",", ";", "/"),
    ),
    RepairFunction(
        "report",
        "headline",
        'def headline(text):\n    """The text without space around it, in capitals, shortened as `shorten` does."""\n'
        "    return shorten(text.strip().upper())\n",
        ((".strip()", ""), (".upper()", "")),
        lambda rng, k: (_padded(rng, _phrase(rng)),),
        uses=("shorten",),
    ),
    RepairFunction(
        "report",
        "best",
        'def best(line):\n    """The largest of the different amounts of a line, as `top` gives them."""\n'
        "    return top(unique(amounts(line)))\n",
        (("top(unique(amounts(line)))", "unique(top(amounts(line)))"), ("top(unique(", "list(unique(")),
        lambda rng, k: (k.join(str(rng.randint(0, 9)) for _ in range(rng.randint(3, 8))),),
        uses=("amounts", "top", "unique"),
    ),
    RepairFunction(
        "report",
        "average_time",
        'def average_time(texts):\n    """The mean of some durations `MINUTES:SECONDS`, in seconds."""\n'
        "    return mean([duration(text) for text in texts])\n",
        (("for text in texts]", "for text in texts[1:]]"), ("mean([", "max([")),
        lambda rng, k: (_durations(rng),),
        uses=("duration", "mean"),
    ),
)  # fmt: skip
BY_NAME: Final = {each.name: each for each in FUNCTIONS}
