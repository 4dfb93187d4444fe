"""TreeQuest: a search that `treequest.render(..., format="json")` wrote (checked with 0.3.3).

`nodes` hold `id` (order of expansion, -1 = root), `parent_id`, `score`, `state_repr` (the text of a state, as Python
shows it), `action_from_parent` and figures of the algorithm. Each state is a whole answer, made from its parent's, so
every node is a candidate. Pickled searches are never read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ramify.core.command import Candidate, Grow, Grown, Score
from ramify.core.growth import Done, Growth
from ramify.core.tree import ROOT, Step, Tree
from ramify.view.readers.chat_messages import text_of
from ramify.view.readers.foreign_run import ForeignRun, ForeignTree
from ramify.view.readers.opening import Opening
from ramify.view.readers.plain_files import Table, damaged, inner, json_document, listed, number, table
from ramify.view.readers.shared_tree import BYTES, CODEC, problem_of, text_segment

JUDGE: Final = "treequest"
CAVEAT: Final = "the file has neither the question nor the prompts: a node holds the text of its state"
ROOT_ID: Final = -1
SHOWN: Final = ("id", "state_repr", "parent_id", "score", "action_from_parent", "depth")


def is_mine(start: Opening) -> bool:
    return start.kind in ("lines", "document") and start.has("nodes edges trials metadata")


def read(files: Sequence[Path]) -> ForeignRun:
    trees: list[ForeignTree] = []
    for path in files:
        found = table(str(path), "the search", json_document(path))
        trees.append(ForeignTree(len(trees), _tree(path, found, seed=len(trees)), _facts(found)))
    algorithms = {str(inner(tree.facts, "algorithm")) for tree in trees}
    return ForeignRun(f"TreeQuest: {', '.join(sorted(algorithms))}", trees)


def _facts(found: Table) -> dict[str, Any]:
    """What the file says of the search, and its trials that have no node: those that run, and those that it refused."""
    metadata, trials = found.get("metadata"), found.get("trials")
    others = (
        [trial for trial in trials if inner(trial, "trial_status") != "COMPLETE"] if isinstance(trials, list) else []
    )
    return {**(metadata if isinstance(metadata, dict) else {}), "trials": others}


def _tree(path: Path, found: Table, *, seed: int) -> Tree:
    nodes = [table(str(path), "a node", node) for node in listed(str(path), "nodes", found["nodes"])]
    for node in nodes:
        if type(node.get("id")) is not int or "parent_id" not in node:
            raise damaged(str(path), "a node", node, "an object with an integer id and a parent_id")
    nodes.sort(key=lambda node: node["id"])
    parents = {node["parent_id"] for node in nodes if isinstance(node["parent_id"], int)}
    growth = Growth(Tree(problem_of(path.stem, ""), CODEC, (), seed=seed))
    places = {ROOT_ID: ROOT}
    for node in nodes:
        if node["id"] == ROOT_ID:
            continue
        parent = node["parent_id"]
        if node["id"] in places:
            raise damaged(str(path), "the id of a second node", node["id"], "unique")
        if type(parent) is not int or parent not in places:
            raise damaged(str(path), f"the parent_id of node {node['id']}", parent, "the id of a node expanded before")
        action = text_of(node.get("action_from_parent")) or "policy"
        command = growth.ask(Grow(places[parent], until="step", action=action))
        growth.grow(command, _step(node, action, is_leaf=node["id"] not in parents))
        outcome = growth.end(command, Done())
        assert isinstance(outcome, Grown)
        places[node["id"]] = outcome.tip
    tree = growth.tree
    scored = [(reward, node) for node in places.values() if (reward := tree.reward(node)) is not None]
    tree.candidates = tuple(
        Candidate(node, reward) for reward, node in sorted(scored, key=lambda one: (-one[0], one[1]))
    )
    tree.caveats = (BYTES, CAVEAT)
    tree.trim()
    return tree


def _step(node: Table, action: str, *, is_leaf: bool) -> Step:
    """One state: a whole answer. Figures of the algorithm are texts in the file and stay so."""
    metrics = node.get("algo_metrics")
    shown = (
        {name: inner(each, "display_value") or each for name, each in metrics.items()}
        if isinstance(metrics, dict)
        else {}
    )
    others = {name: value for name, value in node.items() if name not in (*SHOWN, "algo_metrics") and value}
    return Step(
        (text_segment("sampled", text_of(node.get("state_repr"))),),
        stop="answer" if is_leaf else None,
        action=action,
        scores=(Score(JUDGE, number(node.get("score"))),),
        notes={"expand_idx": node["id"], **others, **shown},
    )
