"""Spend bounds: upper bounds on what a run may spend, from its configuration alone; None = no bound."""

from typing import TypeVar

from ramify.config.configure import resolve
from ramify.config.presets import preset
from ramify.config.run_config import RunConfig

N = TypeVar("N", int, float)


def bounds(config: RunConfig) -> dict[str, float | None]:
    """The maximum trees, leaves, decode tokens and tool calls of a run, and dollars if it limits them."""
    trees, a_tree, a_run = config.prompts, config.limits, config.run_limits
    leaves = least(times(least(a_tree.leaves, _preset_leaves(config)), trees), a_run.leaves)
    decode = least(times(a_tree.decode, trees), a_run.decode, times(leaves, config.growth.max_response_tokens))
    calls = least(times(a_tree.tool_calls, trees), a_run.tool_calls, times(leaves, config.growth.max_tool_calls))
    dollars = least(times(a_tree.dollars, trees), a_run.dollars)
    found: dict[str, float | None] = {"trees": trees, "leaves": leaves, "decode_tokens": decode, "tool_calls": calls}
    return found if dollars is None else {**found, "dollars": dollars}


def least(*values: N | None) -> N | None:
    """The smallest value that is not None; None if all are."""
    return min((value for value in values if value is not None), default=None)


def times(value: N | None, factor: int) -> N | None:
    return None if value is None else value * factor


def _preset_leaves(config: RunConfig) -> int | None:
    """Leaves per tree that the preset states; None if there is no preset or its strategy was changed."""
    if config.preset is None or resolve(preset=config.preset).config.strategy != config.strategy:
        return None
    return preset(config.preset).leaves
