"""The picture of a tree: sound XML whatever its texts are, needing nothing else, and telling rewards and forks."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies.world import CODEC, text_step

from ramify import view
from ramify.core.command import Fork, Grow, Score
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.core.visible import visible
from ramify.view.tree_svg import GROUND, HIGH, INK, LINE, LOW, MAX_BYTES, MAX_NODES, MIDDLE, UNJUDGED

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = (
    "</text><script>alert(1)</script>",
    "]]><!--",
    "&lt;&#x0;&amp;",
    '" onload="alert(1)',
    "<!ENTITY x SYSTEM 'file:///etc/passwd'>",
    "\x00\x1b[31m\x9b2J\ufffe\uffff\u202e\u2066\u200b",
    "url(http://example.org/a.css)",
    "</style><style>*{display:none}",
)


def answered(text: str, reward: float | None) -> Step:
    return text_step(text, stop="answer", scores=() if reward is None else (Score("judge", reward),))


def bush(question: str, texts: Sequence[str], rewards: Sequence[float | None]) -> Tree:
    """A root with one child that says the first text, and below it one leaf for each other text."""
    tree = Tree(Problem("p", question), CODEC, [Segment("prompt", token_array(CODEC.encode("q")))], seed=1)
    stem = tree.begin(0, Grow(ROOT))
    assert stem is not None
    node = tree.add(text_step(texts[0]), stem)
    for number, (text, reward) in enumerate(zip(texts[1:], rewards, strict=True)):
        place = tree.begin(number + 1, Grow(node, fork=Fork(len(rewards), "test") if number == 0 else 0))
        assert place is not None
        tree.add(answered(text, reward), place)
    return tree


def wide(num_leaves: int, text: str) -> Tree:
    return bush(text, [text] * (num_leaves + 1), [0.5] * num_leaves)


def parsed(tree: Tree) -> ElementTree.Element:
    return ElementTree.fromstring(view.tree_svg(tree))


def texts(tree: Tree) -> list[str]:
    return [element.text or "" for element in parsed(tree).iter(f"{SVG}text")]


def fills(tree: Tree) -> list[str | None]:
    """Colours of the boxes, in the order of the nodes."""
    return [box.get("fill") for group in parsed(tree).iter(f"{SVG}g") for box in group.iter(f"{SVG}rect")]


def test_a_box_says_what_a_node_said_and_earned() -> None:
    shown = texts(bush("which?", ["<calc>1+1</calc>", "<answer>2</answer>", "three"], [1.0, 0.0]))
    assert shown[:7] == ["which?", "the problem", "1 root branch", "calc 1+1", "answer 2", "reward 1", "three"]


def test_colours_tell_rewards_and_discs_tell_forks() -> None:
    tree = bush("q", ["a", "b", "c", "d"], [1.0, 0.0, None])
    assert fills(tree) == [MIDDLE, MIDDLE, HIGH, LOW, UNJUDGED]
    discs = [element.text for element in parsed(tree).iter(f"{SVG}text") if element.get("class") == "n"]
    assert discs == ["3", "2"], "one fork, and the legend"


def test_rewards_beyond_one_stretch_the_scale() -> None:
    assert fills(bush("q", ["a", "b", "c"], [-4.0, 12.0]))[2:] == [LOW, HIGH]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_acts_in_the_picture(text: str) -> None:
    tree = bush(text, [text, f"{text}!", text], [1.0, None])
    svg = view.tree_svg(tree)
    known = {"svg", "title", "style", "rect", "text", "g", "path", "circle"}
    root = ElementTree.fromstring(svg)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= known
    assert len(list(root.iter(f"{SVG}style"))) == 1
    assert not [name for element in root.iter() for name in element.attrib if "href" in name or name.startswith("on")]
    assert visible(text)[:8] in "".join(root.itertext())
    assert "<!" not in svg
    assert all(c.isprintable() or c == "\n" for c in svg)


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_makes_sound_xml(question: str, said: str) -> None:
    root = parsed(bush(f"?{question}", [said, said], [None]))
    assert "the problem" in "".join(root.itertext())


@pytest.mark.parametrize("text", ["&" * 40, "\U0001f333" * 40, "\x00\u202e" * 40, "'\"<>" * 20])
def test_a_large_tree_stays_light_and_counts_what_it_leaves_out(text: str) -> None:
    tree = wide(500, text)
    svg = view.tree_svg(tree)
    assert len(svg.encode()) <= MAX_BYTES
    assert f"+ {len(tree) - MAX_NODES} more" in svg


def test_a_long_path_is_drawn() -> None:
    tree = bush("q", ["a"], [])
    for number in range(400):
        place = tree.begin(number + 1, Grow(len(tree) - 1))
        assert place is not None
        tree.add(text_step("a"), place)
    assert f"+ {len(tree) - MAX_NODES} more" in texts(tree)


def test_what_quotes_its_parent_is_dashed() -> None:
    tree = bush("q", ["a"], [])
    place = tree.begin(1, Grow(1, action="critique"))
    assert place is not None
    prompt = Segment("prompt", token_array(CODEC.encode("grade: ")))
    tree.add(Step((prompt, *text_step("poor").segments), edge="quotes", role="critique", action="critique"), place)
    root = parsed(tree)
    assert [path.get("class") for path in root.iter(f"{SVG}path")] == [None, "q"]
    assert "critique: poor" in texts(tree)


def test_the_picture_needs_nothing_else_and_is_the_same_each_time() -> None:
    tree = wide(20, "some text")
    svg = view.tree_svg(tree)
    assert svg == view.tree_svg(tree)
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|url\(|<image|<use|<foreignObject|data:", svg)


def test_texts_and_lines_can_be_told_from_their_grounds() -> None:
    assert min(contrast(INK, ground) for ground in (GROUND, LOW, MIDDLE, HIGH, UNJUDGED)) >= 7
    assert contrast(LINE, GROUND) >= 3


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [byte / 255 for byte in bytes.fromhex(colour[1:])]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
