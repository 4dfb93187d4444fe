"""Llm: a language model as the judge: rubric, self-reward, vote over several nodes, pairwise comparison.

The model, its prompt and its sampling are an action of the run (role `judge`), so another judge is another table of a
configuration. A reply that cannot be read, is cut, or names what is out of range is no score: the fault is told to the
model in the same context and it is asked again, `max_replies` times in all; then the verdict is None, never 0.

Sources: MCTSr's strict scale, an integer in [-100, 100] asked for up to three times, BrendanGraham14/mcts-llm
src/mcts_llm/mctsr.py (what is over 95 is the strategy's business: the raw integer is a part); votes,
princeton-nlp/tree-of-thought-llm src/tot/tasks/text.py; both orders of a pair, arXiv 2306.05685 section 3.4.
"""

import math
import re
from collections.abc import Sequence
from typing import Final, Literal

from ramify.core.action import ActionConfig
from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.judge import Dialogue, Sitting, Verdict
from ramify.core.problem import Problem
from ramify.core.segment import Sampling
from ramify.formats.tags import placeholders
from ramify.judges.replies import vote

Mode = Literal["rubric", "self_reward", "vote", "pairwise"]

SELF_REWARD: Final = (
    "Problem:\n{question}\n\nAnswer:\n{previous}\n\nGrade this answer very strictly: look for every flaw and take "
    "points off for each, and never give a full grade. The grade is an integer from -100 to 100. Reply with that "
    "integer and nothing else."
)
RUBRIC: Final = (
    "Problem:\n{{question}}\n\nAnswer:\n{{previous}}\n\nJudge this answer by these criteria: {rubric}. Think it "
    'through, then write on the last line "Score: " and a number from {low:g} to {high:g}.'
)
VOTE: Final = (
    "Problem:\n{question}\n\n{choices}\n\nWhich of these is best? Compare them, then write on the last line "
    '"The best choice is " and its number.'
)
RANGES: Final = {"rubric": (0.0, 10.0), "self_reward": (-100.0, 100.0)}
NO_INTEGER: Final = "this is no integer; reply with the integer and nothing else"
CUT: Final = "the reply was cut at its limit of tokens; be brief"

_INTEGER = re.compile(r"[-+]?[0-9]{1,9}")
_SCORE = re.compile(r"score\W{0,8}?([-+]?[0-9]{1,9}(?:\.[0-9]{1,9})?)", re.IGNORECASE)
_INDEX = re.compile(r"-?[0-9]{1,9}")
_NODES: Final = frozenset({"answer", "previous", "choices"})


class LlmJudge:
    """A judge that asks a model. See `core.judge.SamplingJudge`."""

    def __init__(
        self,
        *,
        name: str = "llm",
        mode: Mode = "rubric",
        action: str | None = None,
        rubric: str = "it is correct, complete and clear",
        low: float | None = None,
        high: float | None = None,
        max_replies: int = 3,
    ) -> None:
        """`action` names an entry of the run's actions; None = the judge's name, and where there is none of that name a
        prompt for the mode is asked of the policy's engine. `low` and `high`: None = the mode's own. Raises
        `ConfigError`."""
        if mode not in ("rubric", "self_reward", "vote", "pairwise"):
            raise ConfigError(f"judge {name!r}: mode = {mode!r}; allowed are rubric, self_reward, vote and pairwise")
        if max_replies < 1:
            raise ConfigError(f"judge {name!r}: max_replies = {max_replies!r}: at least 1 is needed")
        least, most = RANGES.get(mode, (0.0, 1.0))
        self.low: Final = least if low is None else low
        self.high: Final = most if high is None else high
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(f"judge {name!r}: low = {self.low!r} must be below high = {self.high!r}")
        self.name: Final = name
        self.is_oracle: Final = False
        self.action: Final = name if action is None else action
        self._mode: Final[Mode] = mode
        self._rubric: Final = rubric
        self._max_replies: Final = max_replies

    @property
    def default_action(self) -> ActionConfig:
        """The mode's own prompt, asked of the policy's engine. Repeated judgements and votes are drawn at temperature
        1, the others are greedy."""
        is_repeated = self._mode in ("self_reward", "vote")
        return ActionConfig(
            edge="quotes",
            role="judge",
            template=self._template(),
            sampling=Sampling(temperature=1.0 if is_repeated else 0.0),
        )

    def check(self, action: ActionConfig) -> None:
        """Refuse an action that is no judge's, or whose template does not cite what is judged."""
        names = set(placeholders(action.template))
        numbers = {int(name) for name in names if _INDEX.fullmatch(name)}
        if self._is_of_several and not ({"choices"} <= names or {0, 1} <= numbers):
            raise ConfigError(
                f"judge {self.name!r}: the template of action {self.action!r} must cite {{choices}}, or {{0}} and "
                f"{{1}}, to compare nodes; it cites {sorted(names)}"
            )
        if not names & _NODES and not numbers:
            raise ConfigError(
                f"judge {self.name!r}: the template of action {self.action!r} must cite what it judges: {{previous}}, "
                f"{{answer}} or the number of a context; it cites {sorted(names)}"
            )
        if self._mode == "pairwise" and not numbers <= {-2, -1, 0, 1}:
            raise ConfigError(f"judge {self.name!r}: of a pair there are {{0}} and {{1}}; it cites {sorted(numbers)}")

    def sitting(self, num_nodes: int) -> Sitting:
        """One dialogue a node; one for a vote; one for each order of a pair."""
        num_dialogues = {"vote": 1, "pairwise": 2}.get(self._mode, num_nodes)
        return Sitting(num_dialogues, self._max_replies)

    async def judge_by(
        self, dialogue: Dialogue, nodes: Sequence[Sequence[Branch]], problem: Problem
    ) -> Sequence[Verdict]:
        """One verdict a node; value and part `raw` are what the model said. Of a vote, 1 for the choice and 0 for the
        others; of a pair, the share of the two orders that chose it. Raises `JudgeError`."""
        match self._mode:
            case "vote":
                return await self._voted(dialogue, [contexts[-1] for contexts in nodes])
            case "pairwise":
                return await self._compared(dialogue, [contexts[-1] for contexts in nodes])
            case _:
                return [await self._graded(dialogue, contexts) for contexts in nodes]

    async def _graded(self, dialogue: Dialogue, contexts: Sequence[Branch]) -> Verdict:
        number, num_replies = await self._read(dialogue, contexts)
        parts = {"num_replies": float(num_replies)}
        return Verdict(number, parts if number is None else {"raw": number, **parts})

    async def _voted(self, dialogue: Dialogue, branches: Sequence[Branch]) -> list[Verdict]:
        choice, num_replies = await self._read(dialogue, branches)
        values = [None if choice is None else float(choice == number) for number in range(1, len(branches) + 1)]
        return [Verdict(value, {"num_replies": float(num_replies)}) for value in values]

    async def _compared(self, dialogue: Dialogue, branches: Sequence[Branch]) -> list[Verdict]:
        """Each order once, since models prefer a place; an order that cannot be read leaves nothing to compare."""
        if len(branches) != 2:
            raise JudgeError(f"judge {self.name!r} compares two nodes, got {len(branches)}")
        there, num_there = await self._read(dialogue, branches)
        back, num_back = await self._read(dialogue, branches[::-1])
        parts = {"num_replies": float(num_there + num_back)}
        if there is None or back is None:
            return [Verdict(None, parts)] * 2
        first = ((there == 1) + (back == 2)) / 2
        return [Verdict(first, parts), Verdict(1 - first, parts)]

    async def _read(self, dialogue: Dialogue, contexts: Sequence[Branch]) -> tuple[float | None, int]:
        """The number that the model says, and how many replies that took; None = it said none."""
        reply = await dialogue.open(contexts)
        for number in range(1, self._max_replies + 1):
            fault = CUT if reply.is_cut else self._fault(reply.text, len(contexts))
            if fault is None:
                return self._number(reply.text), number
            if number < self._max_replies:
                reply = await dialogue.correct(fault)
        return None, self._max_replies

    @property
    def _is_of_several(self) -> bool:
        return self._mode in ("vote", "pairwise")

    def _number(self, text: str) -> float | None:
        """The number in a reply; None = there is none where it belongs."""
        if self._is_of_several:
            return vote(text)
        if self._mode == "self_reward":
            return int(text) if _INTEGER.fullmatch(text.strip()) else None
        scores = _SCORE.findall(text.strip().rpartition("\n")[2])
        return float(scores[-1]) if scores else None

    def _fault(self, text: str, num_nodes: int) -> str | None:
        """What is wrong with a reply, as the model is told; None = nothing is."""
        number = self._number(text)
        low, high = (1, num_nodes) if self._is_of_several else (self.low, self.high)
        if number is not None:
            is_fine = low <= number <= high
            return None if is_fine else f"{number:g} is out of range; allowed is {low:g} to {high:g}"
        if self._mode == "self_reward":
            return NO_INTEGER
        wanted = '"The best choice is " and its number' if self._is_of_several else '"Score: " and the number'
        return f"there is no number to read; write on the last line {wanted}"

    def _template(self) -> str:
        if self._mode == "self_reward":
            return SELF_REWARD
        if self._is_of_several:
            return VOTE
        rubric = self._rubric.replace("{", "{{").replace("}", "}}")
        return RUBRIC.format(rubric=rubric, low=self.low, high=self.high)
