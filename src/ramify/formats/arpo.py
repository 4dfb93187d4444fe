"""The `arpo` format: tool tags, ` <result>` blocks, `<answer>` (arXiv 2507.19849; RUC-NLPIR/ARPO).

It differs from the published code on purpose. The action is the one that the stop word just closed, not the last pair
of tags in the whole row. An empty call gets an error as its answer, and the path goes on. A closing tag without an
opening tag gets an error that says so. A result is never encoded with added special tokens (`docs/methods/arpo.md`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ramify.formats.tags import TagFormat

ARPO: Final = TagFormat(tags={"python": "python", "search": "search"})
"""ARPO with the two tools of the paper."""

AS_PUBLISHED: Final = replace(ARPO, stops_at_answer=False, texts={"crashed": "Tool({tag}) returned empty output."})
"""As the code trains: an answer does not end the path, and a tool that fails is said to have returned nothing."""


def arpo(tags: Mapping[str, str]) -> TagFormat:
    """The ARPO format with other tools: tool name -> tag."""
    return TagFormat(tags=tags)
