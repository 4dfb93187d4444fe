"""A typed Python function as a tool of a run. Nothing else is needed: the model here is a script.

python examples/function_tool.py
"""

from typing import Literal

from ramify import rollout_sync, tool
from ramify.testing import Scripted


@tool
def convert(amount: float, unit: Literal["km", "mile"] = "km") -> dict[str, float]:
    """Convert a distance.

    Args:
        amount: how much of the unit
        unit: what the amount is in
    """
    return {"mile": round(amount / 1.609, 1)} if unit == "km" else {"km": round(amount * 1.609, 1)}


def say(turn):
    """First a call with a unit that there is not, then a good one, then the answer."""
    turns = ['<convert>{"amount": 42, "unit": "yard"}</convert>', '<convert>{"amount": 42}</convert>']
    return [*turns, "<answer>26.1</answer>"][turn.context.count("<result>")]


if __name__ == "__main__":
    result = rollout_sync(
        ["How many miles are 42 km?"],
        engine=Scripted(say),
        strategy__options={"n": 1},
        tools__use={"convert": {"kind": f"{__file__}:convert", "options": {"deadline_s": 5.0}}},
    )
    (tree,) = result.trees
    (leaf,) = tree.leaves()
    for call in tree.branch(leaf).tool_calls:
        print(f"{call.status}: {call.arguments} -> {call.result}")
