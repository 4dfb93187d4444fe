"""The `search_r1` format: `<search>`, `<information>`, `<answer>` (arXiv 2503.09516; PeterGriffinJin/Search-R1).

It differs from the published code on purpose. The sampled ids are kept; they are never cut at a tag and encoded again.
The action is the one that the stop word just closed, not the first pair of tags in the text. An observation is cut to
its limit as a whole, so its closing tag is never lost (`docs/methods/chains.md`).
"""

from dataclasses import replace
from typing import Final

from ramify.formats.tags import TagFormat

SEARCH_R1: Final = TagFormat(
    tags={"search": "search"},
    observation="\n\n<information>{text}</information>\n\n",
    strips_results=True,
    texts={"empty": ""},
    invalid=(
        "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
        "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try "
        "again.\n"
    ),
)
"""As published: three sentences, outside any tag, answer everything that is no action."""

SINGLE_TURN: Final = replace(SEARCH_R1, tags={})
"""Without search: plain single-turn GRPO with the same loop."""
