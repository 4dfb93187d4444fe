"""Prune: rules that give a path up. A rule is `prune(branch) -> reason | None`, asked after every step of the policy.

A path that is given up ends with the stop word `closed`, or the one its reason begins with (`repetition: …`), and the
reason in its notes. It stays a leaf with its reward, which keeps the gradient exact for the task so truncated; with
`growth.keep` a coin gives it up, exactly for the task as it is. A rule reads the branch, never a secret. What it needs
besides are keywords, `growth.prune_options`; one named `value` is what the judge of steps `growth.prune_judge` gives.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from ramify.core.branch import Branch, estimated_tokens

Prune = Callable[..., str | None]
"""(branch, and what the rule needs besides) -> why to give the path up, or None to go on."""
LOOP_CHARACTERS: Final = 32
LOOP_COUNT: Final = 8
"""What TreePO calls a loop: so many characters, so often (`_has_repetition`)."""


def over_budget(branch: Branch, *, tokens: int) -> str | None:
    """Give up when the path has sampled more than `tokens` tokens and not come to its end."""
    number = int(branch.is_sampled.sum())
    number = number if branch.codec.is_exact else estimated_tokens(number)
    return f"{number} tokens were sampled, more than {tokens}" if number > tokens else None


def judged_below(branch: Branch, *, value: float, below: float = 0.05) -> str | None:
    """Give up when the judge of steps finds the path worth less than `below`.

    The default is what "reject by a learned value" in `docs/when-trees-pay.md` had.
    """
    return f"judged {value:.3g}, below {below:g}" if value < below else None


def repeated_call(branch: Branch) -> str | None:
    """Give up when the last call is one this path has made before: a loop."""
    calls = [(call.tool, call.arguments) for call in branch.tool_calls]
    return f"the call {calls[-1][1]!r} was made before" if calls and calls[-1] in calls[:-1] else None


def repetition(branch: Branch) -> str | None:
    """Give up when the model has said the same 32 characters 8 times since the last observation, overlapping or not.

    Asked at the end of every step or segment. Source: multimodal-art-projection/TreePO recipe/treepo/
    vllm_rollout_tree.py, which looks at each segment of 512 tokens by itself.
    """
    text = branch.run_text
    counts = Counter(text[i : i + LOOP_CHARACTERS] for i in range(len(text) - LOOP_CHARACTERS + 1))
    repeated = next((part for part, number in counts.items() if number >= LOOP_COUNT), None)
    return None if repeated is None else f"repetition: {repeated!r} was said {counts[repeated]} times"
