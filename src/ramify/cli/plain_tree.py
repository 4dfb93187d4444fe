"""Plain tree: a tree drawn for people who see one for the first time: actions, results, and which leaves were right.

`draw.py` shows what was sampled, with ids and figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text
from rich.tree import Tree as Drawing

from ramify.cli.draw import drawings
from ramify.cli.terminal import shortened
from ramify.core.tree import ROOT, Step, Tree
from ramify.view.node_text import NodeText, node_text, step_text

MAX_QUESTION = 100
MAX_SAID = 60
MAX_OBSERVED = 40
FORKED = "⑂ forked"


@dataclass(frozen=True, slots=True)
class GrowingPath:
    """Steps of a command in flight, which are not on the tree yet."""

    parent: int
    steps: Sequence[Step]


def plain_tree(tree: Tree, growing: Iterable[GrowingPath] = ()) -> Drawing:
    """The drawing of `tree`, and of the paths that grow on it."""
    made = drawings(tree, Text(shortened(tree.problem.question, MAX_QUESTION), style="bold"), plain_label)
    for path in growing:
        drawing, _ = made[path.parent]
        for step in path.steps:
            reward = next((score.value for score in step.scores if score.value is not None), None)
            drawing = drawing.add(_label(step_text(step.segments, tree.codec), step.stop, reward))
    return made[ROOT][0]


def plain_label(tree: Tree, node: int) -> Text:
    """One line about a node."""
    label = _label(node_text(tree, node), tree.stop(node), tree.reward(node))
    if tree.role(node) != "policy":
        label = Text(f"{tree.role(node)}: ", style="magenta") + label
    if len(tree.children(node)) > 1:
        label.append(f"  {FORKED}", style="cyan")
    return label


def verdict(reward: float) -> str:
    """A reward in words."""
    known = {1.0: "right, ", 0.0: "wrong, "}
    return f"{known.get(reward, '')}reward {reward:.3g}"


def _label(text: NodeText, stop: str | None, reward: float | None) -> Text:
    label = Text(shortened(text.said, MAX_SAID))
    if text.observed:
        label.append(f" → {shortened(text.observed, MAX_OBSERVED)}", style="blue")
    if reward is not None:
        label.append(f"  {verdict(reward)}", style="bold green" if reward > 0 else "red")
    elif stop is not None:
        label.append(f"  {stop}", style="red")
    return label
