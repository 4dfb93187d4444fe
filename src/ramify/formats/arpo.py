"""The `arpo` format: tool tags, ` <result>` blocks, `<answer>` (arXiv 2507.19849; RUC-NLPIR/ARPO).

Differences from the published code, all on purpose: the action is the one the stop word just closed, not the last pair
of tags in the whole row; an empty call is answered by an error and goes on; a closing tag that closes nothing is told
so; a result is never encoded with added special tokens (`docs/rollouts.md`).
"""

from collections.abc import Mapping
from typing import Final

from ramify.formats.tags import TagFormat

ARPO: Final = TagFormat(tags={"python": "python", "search": "search"})
"""With the two tools of the paper."""


def arpo(tags: Mapping[str, str]) -> TagFormat:
    """ARPO's way of speaking with other tools: tool name -> tag."""
    return TagFormat(tags=tags)
