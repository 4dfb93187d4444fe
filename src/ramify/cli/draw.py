"""Draw: a tree of the core as a coloured tree of the terminal.

Every node is a line: what the model wrote, what the tool said, entropy, reward, stop word. The text of both is
untrusted and goes through `visible`; colours are never taken from it.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text
from rich.tree import Tree as Drawing

from ramify.cli.terminal import shortened
from ramify.core.stop import STOP_WORDS
from ramify.core.tree import ROOT, Tree

MAX_ACTION = 60
MAX_RESULT = 40
MAX_FAULT = 120
MAX_DEPTH = 16
"""Levels that are drawn further in than the one above."""


def tree_view(tree: Tree) -> Drawing:
    """`tree` as a drawing, in canonical order; children that quote their parent are marked `quotes`."""
    return drawings(tree, _root_label(tree), node_label)[ROOT][0]


def drawings(tree: Tree, root: Text, label: Callable[[Tree, int], Text]) -> dict[int, tuple[Drawing, int]]:
    """Every node -> the drawing that its children are added to, and its level. What is deeper than `MAX_DEPTH` stands
    on that level and names its parent."""
    made = {ROOT: (Drawing(root, guide_style="dim"), 0)}
    for node in tree.subtree()[1:]:
        parent = tree.parent(node)
        assert parent is not None
        drawing, depth = made[parent]
        text = label(tree, node)
        if depth < MAX_DEPTH:
            made[node] = drawing.add(text), depth + 1
        else:
            drawing.add(Text(f"under {parent}: ", style="dim") + text)
            made[node] = drawing, depth
    return made


def node_label(tree: Tree, node: int) -> Text:
    """One line about a node: id, role, action, result, entropy, reward, stop word."""
    label = Text(f"{node} ", style="dim")
    role, edge = tree.role(node), tree.edge(node)
    if role != "policy" or edge == "quotes":
        label.append(f"{role}{' quotes' if edge == 'quotes' else ''} ", style="magenta")
    if (fork := tree.fork(node)) is not None and fork.num_siblings > 1:
        label.append(f"⑂{fork.decision_id} ", style="cyan")
    label.append(shortened(_text(tree, node, "sampled", "written"), MAX_ACTION))
    if observed := _text(tree, node, "given"):
        label.append(f" → {shortened(observed.strip(), MAX_RESULT)}", style="blue")
    for part, style in _figures(tree, node):
        label.append(f"  {part}", style=style)
    return label


def _root_label(tree: Tree) -> Text:
    label = Text(shortened(tree.problem.question, MAX_ACTION + MAX_RESULT), style="bold")
    label.append(f"  {shortened(tree.problem.uid, 40)}", style="dim")
    return label


def _figures(tree: Tree, node: int) -> list[tuple[str, str]]:
    """(text, style) of the numbers and words about a node."""
    parts: list[tuple[str, str]] = []
    if (entropy := _entropy(tree, node)) is not None:
        parts.append((f"H {entropy:.2f}", "yellow" if entropy >= 0.3 else "dim"))
    for score in tree.scores(node):
        value = "none" if score.value is None else f"{score.value:.2f}"
        style = "dim" if score.value is None else "bold green" if score.value > 0 else "red"
        parts.append((f"{score.judge} {value}{' oracle' if score.is_oracle else ''}", style))
    if (fault := tree.notes(node).get("judge")) is not None:
        parts.append((shortened(str(fault), MAX_FAULT), "red"))
    if (stop := tree.stop(node)) is not None:
        is_bad = STOP_WORDS[stop].is_truncated or STOP_WORDS[stop].is_failure
        parts.append((stop + _why(tree.notes(node)), "red" if is_bad else "green"))
    return parts


def _why(notes: Mapping[str, Any]) -> str:
    """Why a path ended: a reason, or the words of the fault."""
    if fault := notes.get("fault"):
        return f": {shortened(str(fault), MAX_FAULT)}"
    reason = notes.get("closed") or notes.get("reason")
    return f": {shortened(str(reason), 40)}" if reason else ""


def _entropy(tree: Tree, node: int) -> float | None:
    """Mean entropy of the node's sampled tokens in nats, or the step's own measure; None = neither was computed."""
    values = [s.measures["entropy"] for s in tree.segments(node) if "entropy" in s.measures and len(s)]
    if values:
        return sum(float(v.sum()) for v in values) / sum(len(v) for v in values)
    return tree.measure(node, "step_entropy_topk")


def _text(tree: Tree, node: int, *origins: str) -> str:
    ids = [int(i) for segment in tree.segments(node) if segment.origin in origins for i in segment.ids]
    return tree.codec_of(node).decode(ids)
