"""Prune: rules that stop a path. A rule is `prune(branch) -> reason | None`, called after every step of the policy.

A pruned path ends with the stop word `closed`, or with the stop word that its reason begins with (`repetition: …`). The
reason is in its notes. The path stays a leaf with its reward, so the gradient is exact for the truncated task. With
`growth.keep` random termination ("coin") decides whether it is pruned, and the gradient is exact for the original task.
A rule reads the branch, never a secret. Other inputs are keywords, `growth.prune_options`. A keyword named `value` gets
the value from the step judge `growth.prune_judge`.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from ramify.core.branch import Branch, estimated_tokens

Prune = Callable[..., str | None]
"""(branch, and the rule's keywords) -> the reason to prune the path, or None to continue."""
LOOP_CHARACTERS: Final = 32
LOOP_COUNT: Final = 8
"""TreePO's definition of a loop: LOOP_CHARACTERS characters that occur LOOP_COUNT times (`_has_repetition`)."""


def over_budget(branch: Branch, *, tokens: int) -> str | None:
    """Prune a path that has sampled more than `tokens` tokens without ending.

    - `tokens`: most tokens that a path may sample.
    """
    number = int(branch.is_sampled.sum())
    number = number if branch.codec.is_exact else estimated_tokens(number)
    return f"{number} tokens were sampled, more than {tokens}" if number > tokens else None


def judged_below(branch: Branch, *, value: float, below: float = 0.05) -> str | None:
    """Prune a path if the step judge's value is less than `below`.

    - `below`: lowest value of a path that continues. The default is that of the prototype in
      `docs/choose/measured-trees.md`.
    """
    return f"judged {value:.3g}, below {below:g}" if value < below else None


def repeated_call(branch: Branch) -> str | None:
    """Prune a path whose last tool call repeats an earlier call of this path: a loop."""
    calls = [(call.tool, call.arguments) for call in branch.tool_calls]
    return f"the call {calls[-1][1]!r} was made before" if calls and calls[-1] in calls[:-1] else None


def repetition(branch: Branch) -> str | None:
    """Prune a path if the same 32 characters occur 8 times, overlapping or not, in the model's text since the last
    observation.

    Called at the end of every step or segment. Source: multimodal-art-projection/TreePO
    recipe/treepo/vllm_rollout_tree.py, which checks each segment of 512 tokens separately.
    """
    text = branch.run_text
    counts = Counter(text[i : i + LOOP_CHARACTERS] for i in range(len(text) - LOOP_CHARACTERS + 1))
    repeated = next((part for part, number in counts.items() if number >= LOOP_COUNT), None)
    return None if repeated is None else f"repetition: {repeated!r} was said {counts[repeated]} times"
