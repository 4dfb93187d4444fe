"""A coding agent whose branches keep an interpreter each. Needs Linux, bubblewrap, no model and no network.

    python examples/coding_agent.py

The agent is to repair a function. Its first call defines the function and a check in a Python session; where a path
forks, every branch goes on from there with a copy of the interpreter, tries a repair of its own and sees only what it
did itself: the list `tried` in each session is the history of its branch. The agent is a script, so that it runs
anywhere; `engine__name`, `engine__model` and `format` make it a model.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

import ramify
from ramify.cli.draw import tree_view
from ramify.formats.arpo import arpo
from ramify.judges.exact import Exact
from ramify.testing import SCRIPTED, Scripted, ScriptedTurn
from ramify.tools.python import Python

DRAFT = """\
def median(values):
    return sorted(values)[len(values) // 2]

def check():
    print("tried:", ", ".join(tried))
    for values, wanted in (([3, 1, 2], 2), ([1, 4, 2, 3], 2.5)):
        if median(values) != wanted:
            return print(f"FAILED: median({values}) is {median(values)}, not {wanted}")
    print("passed:", median([10, 40, 20, 30]))

tried = ["draft"]
check()"""
REPAIRS = {
    "lower": "def median(values):\n    return sorted(values)[(len(values) - 1) // 2]",
    "middle": (
        "def median(values):\n    values, half = sorted(values), len(values) // 2\n"
        "    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2"
    ),
    "library": "from statistics import median",
}


def coder(turn: ScriptedTurn) -> str:
    """Draft, then repair by one of the ways not tried yet until the check passes, then answer."""
    shown = turn.context.rpartition("<result>")[2]
    if "<result>" not in turn.context:
        return f"<python>{DRAFT}</python>"
    if passed := re.search(r"passed: (\S+)", shown):
        return f"<answer>{passed[1]}</answer>"
    left = [way for way in REPAIRS if way not in shown.partition("\nFAILED")[0]]
    if not left or turn.seed % 5 == 0:
        return "I give up. <answer>unknown</answer>"
    way = left[turn.seed % len(left)]
    return f'<python>{REPAIRS[way]}\ntried.append("{way}")\ncheck()</python>'


class Repair:
    """One bug, a Python session, and the value that only a right `median` returns."""

    def __init__(self) -> None:
        self.format = arpo({"python": "python"})
        self.tools = (Python(),)
        self.judges = (Exact(self.format),)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[ramify.Problem]:
        question = "Write median(values), check it, and answer with median([10, 40, 20, 30])."
        return [ramify.Problem("median", question, secret={"answer": "25"})][:num_problems]

    def prune(self, branch: ramify.Branch) -> str | None:
        return None

    def is_same_answer(self, one: str, other: str) -> bool:
        return one == other


async def main() -> ramify.Rollout:
    return await ramify.rollout(
        preset="tree_grpo",
        task=Repair(),
        engine=Scripted(coder, capabilities=replace(SCRIPTED, context_length=32_768)),
        prompts=1,
        seed=3,
        strategy__options={"num_trees": 2, "num_nodes": 3},
        growth__max_response_tokens=8000,
        growth__max_turns=6,
        actions__policy__max_tokens=2000,
    )


def tried(branch: ramify.Branch) -> str:
    """What the interpreter of a branch says that was tried in it."""
    said = [line for call in branch.tool_calls for line in call.result.splitlines() if line.startswith("tried: ")]
    return said[-1].removeprefix("tried: ") if said else "nothing"


if __name__ == "__main__":
    done = asyncio.run(main())
    (tree,) = done.trees
    console = Console(width=150)
    console.print(tree_view(tree))
    for leaf in tree.leaves():
        console.print(
            f"leaf {leaf:2}: reward {tree.reward(leaf)}, tried in its interpreter: {tried(tree.branch(leaf))}"
        )
