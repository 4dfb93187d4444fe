"""Estimate: upper bounds on what a run may spend, from its configuration alone; None = nothing bounds it."""

from ramify.config.configure import resolve
from ramify.config.presets import preset
from ramify.config.run_config import RunConfig


def bounds(config: RunConfig) -> dict[str, int | None]:
    """The most trees, leaves, decode tokens and tool calls of a run."""
    trees, a_tree, a_run = config.prompts, config.limits, config.run_limits
    leaves = least(times(least(a_tree.leaves, _preset_leaves(config)), trees), a_run.leaves)
    decode = least(times(a_tree.decode, trees), a_run.decode, times(leaves, config.growth.max_response_tokens))
    calls = least(times(a_tree.tool_calls, trees), a_run.tool_calls, times(leaves, config.growth.max_tool_calls))
    return {"trees": trees, "leaves": leaves, "decode_tokens": decode, "tool_calls": calls}


def least(*values: int | None) -> int | None:
    """The least of the values that are there."""
    return min((value for value in values if value is not None), default=None)


def times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _preset_leaves(config: RunConfig) -> int | None:
    """Leaves of a tree as the preset states them, if its strategy is unchanged."""
    if config.preset is None or resolve(preset=config.preset).config.strategy != config.strategy:
        return None
    return preset(config.preset).leaves
