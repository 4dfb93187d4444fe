"""Tree SVG: a tree as one picture that needs nothing else: no font, script, link or file from anywhere.

Time runs to the right. A box is a node: what the model said, and below it what a tool answered or how the path ended.
Its colour is the mean reward of the leaves behind it. A disc with a number stands where a path forked. The picture has
its own light ground, so it reads alike on white and dark pages. Texts of a tree are untrusted: they are shortened,
their control characters are spelt out, and then they are escaped.

Pure: the same tree gives the same text. It is at most `MAX_BYTES` long; nodes that do not fit are counted.
"""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from ramify.core.tree import ROOT, Tree
from ramify.core.visible import shortened
from ramify.view.node_text import node_text

MAX_BYTES: Final = 100_000
MAX_NODES: Final = 120
"""Nodes that are drawn, breadth first."""
MAX_TEXT: Final = 34
MAX_QUESTION: Final = 100

GROUND, LINE, INK, FORK = "#ffffff", "#6e7781", "#1b1f24", "#6639ba"
LOW, MIDDLE, HIGH, UNJUDGED = "#f6b48f", "#f3f3f3", "#8cc5ea", "#e4e6e9"
"""Of boxes: rewards from low to high, told apart by people who see no red or green; and no reward."""

MARGIN, ROW, HEIGHT, GAP = 16, 48, 38, 44
"""Pixels: around the picture; between two leaves; of a box; between two columns."""
CELL: Final = 7.4
"""Width of a character at 12 pixels; the widest of the usual monospaced fonts needs 7.3."""
DISC: Final = 8

_STYLE = (
    f"text{{font:12px ui-monospace,Menlo,Consolas,monospace;fill:{INK};white-space:pre}}"
    f"rect{{stroke:{LINE};rx:5px}}path{{fill:none;stroke:{LINE};stroke-width:1.5}}.q{{stroke-dasharray:4 3}}"
    f".b{{font-weight:bold;font-size:14px}}circle{{fill:{FORK}}}.n{{fill:{GROUND};font-weight:bold;text-anchor:middle}}"
)


@dataclass(frozen=True, slots=True)
class _Box:
    """A node's place and content."""

    x: float
    y: float
    """Of its middle."""
    width: float
    lines: tuple[str, ...]
    """Texts, not escaped."""
    fill: str
    about: str

    @property
    def right(self) -> float:
        return self.x + self.width


def tree_svg(tree: Tree) -> str:
    """The picture of `tree`: the text of an SVG file of at most `MAX_BYTES`."""
    drawn = tree.subtree()[:MAX_NODES]
    children = _children(tree, drawn)
    boxes = _boxes(tree, children, _hidden(tree, drawn))
    width = max(*(box.right for box in boxes.values()), _cells(_title(tree)) * 1.2 * CELL, 560.0) + MARGIN + DISC
    height = max(box.y for box in boxes.values()) + ROW + MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(_title(tree))}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="100%" height="100%" style="fill:{GROUND};stroke:none"/>',
        f'<text class="b" x="{MARGIN}" y="{MARGIN + 12}">{escape(_title(tree))}</text>',
        *(_edge(tree, child, boxes[node], boxes[child]) for node in drawn for child in children[node]),
        *(_drawn(box) for box in boxes.values()),
        *(_disc(boxes[node].right, boxes[node].y, len(below)) for node, below in children.items() if len(below) > 1),
        *_legend(_span(tree), height - MARGIN),
        "</svg>\n",
    ]
    return "\n".join(parts)


def mean_reward(tree: Tree, node: int = ROOT) -> float | None:
    """Mean reward of the leaves at and below a node; None = none of them was judged."""
    rewards = [reward for leaf in tree.leaves(node) if (reward := tree.reward(leaf)) is not None]
    return sum(rewards) / len(rewards) if rewards else None


def _title(tree: Tree) -> str:
    return shortened(tree.problem.question, MAX_QUESTION)


def _children(tree: Tree, drawn: Sequence[int]) -> Mapping[int, list[int]]:
    """Every drawn node -> its drawn children, those that quote it included, in canonical order."""
    children: dict[int, list[int]] = {node: [] for node in drawn}
    for node in drawn[1:]:
        children[_parent(tree, node)].append(node)
    return children


def _hidden(tree: Tree, drawn: Sequence[int]) -> Counter[int]:
    """Drawn node -> how many nodes below it are not drawn."""
    nearest = {node: node for node in drawn}
    hidden = Counter[int]()
    for node in tree.subtree()[len(drawn) :]:
        nearest[node] = nearest[_parent(tree, node)]
        hidden[nearest[node]] += 1
    return hidden


def _parent(tree: Tree, node: int) -> int:
    parent = tree.parent(node)
    assert parent is not None, "only the root has none"
    return parent


def _boxes(tree: Tree, children: Mapping[int, list[int]], hidden: Counter[int]) -> dict[int, _Box]:
    lines = {node: tuple(_lines(tree, node, hidden[node])) for node in children}
    columns = _columns(children)
    widths: defaultdict[int, float] = defaultdict(float)
    for node, column in columns.items():
        widths[column] = max(widths[column], max(map(_cells, lines[node])) * CELL + 16)
    lefts = [MARGIN + sum(widths[c] + GAP for c in range(column)) for column in range(len(widths))]
    rows, span = _rows(children), _span(tree)
    return {
        node: _Box(
            x=lefts[columns[node]],
            y=MARGIN + ROW + rows[node] * ROW,
            width=widths[columns[node]],
            lines=lines[node],
            fill=_colour(mean_reward(tree, node), span),
            about=_about(tree, node),
        )
        for node in children
    }


def _lines(tree: Tree, node: int, num_hidden: int) -> Iterator[str]:
    if node == ROOT:
        number = len(tree.stems())
        yield "the problem"
        yield f"{number} root branch{'' if number == 1 else 'es'}"
    else:
        text = node_text(tree, node)
        role = tree.role(node)
        yield shortened(text.said if role == "policy" else f"{role}: {text.said}", MAX_TEXT)
        yield from _ending(tree, node, text.observed)
    if num_hidden:
        yield f"+ {num_hidden} more"


def _ending(tree: Tree, node: int, observed: str) -> Iterator[str]:
    """What a tool answered, or else how the path ended."""
    reward, stop = tree.reward(node), tree.stop(node)
    ended = "" if stop is None else stop if reward is None else f"reward {reward:.3g}"
    if observed:
        yield f"→ {shortened(observed, MAX_TEXT - 2)}"
    if ended:
        yield ended


def _about(tree: Tree, node: int) -> str:
    mean, number = mean_reward(tree, node), len(tree.leaves(node))
    told = "no reward" if mean is None else f"mean reward {mean:.3g}"
    return f"{number} {'leaf' if number == 1 else 'leaves'}, {told}"


def _columns(children: Mapping[int, list[int]]) -> dict[int, int]:
    """Depth of every drawn node. Parents stand before their children in `children`."""
    columns = {ROOT: 0}
    for node, below in children.items():
        columns.update(dict.fromkeys(below, columns[node] + 1))
    return columns


def _rows(children: Mapping[int, list[int]]) -> dict[int, float]:
    """Leaves one below the other, a parent midway between its first and its last child."""
    order, stack = list[int](), [ROOT]
    while stack:
        node = stack.pop()
        order.append(node)
        stack.extend(reversed(children[node]))
    ends = iter(range(len(order)))
    rows: dict[int, float] = {node: next(ends) for node in order if not children[node]}
    for node in reversed(order):
        if below := children[node]:
            rows[node] = (rows[below[0]] + rows[below[-1]]) / 2
    return rows


def _span(tree: Tree) -> tuple[float, float]:
    """Rewards of the lowest and the highest colour: 0 and 1, or farther where rewards lie farther."""
    rewards = [reward for leaf in tree.leaves() if (reward := tree.reward(leaf)) is not None]
    return min([0.0, *rewards]), max([1.0, *rewards])


def _colour(reward: float | None, span: tuple[float, float]) -> str:
    if reward is None:
        return UNJUDGED
    share = (reward - span[0]) / (span[1] - span[0])
    one, other, part = (LOW, MIDDLE, 2 * share) if share < 0.5 else (MIDDLE, HIGH, 2 * share - 1)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(_rgb(one), _rgb(other), strict=True))


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _cells(text: str) -> int:
    """Columns that a text takes in a monospaced font."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _edge(tree: Tree, child: int, one: _Box, other: _Box) -> str:
    style = ' class="q"' if tree.edge(child) == "quotes" else ""
    bend = (one.right + other.x) / 2
    begin, end = f"{one.right:.0f} {one.y:.0f}", f"{other.x:.0f} {other.y:.0f}"
    return f'<path{style} d="M{begin}C{bend:.0f} {one.y:.0f} {bend:.0f} {other.y:.0f} {end}"/>'


def _drawn(box: _Box) -> str:
    height = max(HEIGHT, 15 * len(box.lines) + 8)
    top = box.y - 7.5 * len(box.lines) + 11.5
    texts = "".join(
        f'<text x="{box.x + 8:.0f}" y="{top + 15 * number:.1f}">{escape(line)}</text>'
        for number, line in enumerate(box.lines)
    )
    place = f'x="{box.x:.0f}" y="{box.y - height / 2:.1f}" width="{box.width:.0f}" height="{height}"'
    return f'<g><title>{box.about}</title><rect {place} fill="{box.fill}"/>{texts}</g>'


def _disc(x: float, y: float, number: int) -> str:
    return f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{DISC}"/><text class="n" x="{x:.0f}" y="{y + 4:.0f}">{number}</text>'


def _legend(span: tuple[float, float], y: float) -> Iterator[str]:
    x = float(MARGIN)
    for reward in (span[0], sum(span) / 2, span[1]):
        name = f"{reward:.3g}"
        yield f'<rect x="{x:.0f}" y="{y - 10:.0f}" width="14" height="12" fill="{_colour(reward, span)}"/>'
        yield f'<text x="{x + 19:.0f}" y="{y:.0f}">{name}</text>'
        x += 19 + (len(name) + 2) * CELL
    yield f'<text x="{x:.0f}" y="{y:.0f}">mean reward of the leaves behind</text>'
    x += 34 * CELL
    yield _disc(x, y - 4, 2)
    yield f'<text x="{x + 14:.0f}" y="{y:.0f}">forked into 2</text>'
