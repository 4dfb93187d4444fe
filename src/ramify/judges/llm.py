"""Llm: a language model as the judge, by rubric, self-reward, labels, tenths, a vote over nodes, or pairs.

The model, its prompt and its sampling are an action of the run (role `judge`), so another judge is another table in the
configuration. If a reply cannot be read, is cut or is out of range, the model is told the fault in the same context and
asked again, up to `max_replies` replies. If none can be read, the verdict is None, never 0. With the published reading
only the first reply counts, with the value that the published code gives it; for self-reward that is the first of
`max_replies` that is an integer, however large.

Sources: MCTSr's strict scale, an integer in [-100, 100] asked for up to three times, BrendanGraham14/mcts-llm
src/mcts_llm/mctsr.py (the strategy handles values over 95; the raw integer is a part); labels and votes,
princeton-nlp/tree-of-thought-llm src/tot/tasks/{game24,text}.py; tenths, lapisrocks/LanguageAgentTreeSearch
hotpot/hotpotqa.py; both orders of a pair, arXiv 2306.05685 section 3.4.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, get_args

from ramify.core.action import ActionConfig
from ramify.core.branch import Branch
from ramify.core.errors import ConfigError, JudgeError
from ramify.core.judge import Dialogue, Sitting, Verdict
from ramify.core.problem import Problem
from ramify.core.segment import Sampling
from ramify.formats.tags import placeholders
from ramify.judges.prompts import TEMPERATURES, Mode, prompt
from ramify.judges.replies import CHOICE, LABELS, SCORE, Reading, label_value, tenths, vote, votes

RANGES: Final = {"rubric": (0.0, 10.0), "self_reward": (-100.0, 100.0)}
"""Lowest and highest number of modes that use `low` and `high`."""
PUBLISHED: Final = frozenset({"labels", "self_reward", "tenths", "vote"})
"""Modes that have a published reading."""
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
        worth: Mapping[str, float] = LABELS,
        num_samples: int = 1,
        reading: Reading = "corrected",
        max_replies: int = 3,
    ) -> None:
        """Raises `ConfigError`.

        - `mode`: what the model is asked for: a score by a rubric; MCTSr's strict self-reward; a label such as `sure`;
          tenths (LATS); a vote among candidates; or a comparison of pairs.
        - `action`: action of the run that asks: its engine, prompt and sampling. None = the one with the judge's name;
          if there is none, the policy's engine is asked with the default prompt of the mode.
        - `rubric`: what a good answer is, in the default prompt of the mode `rubric`.
        - `low`: lowest score; None = the mode's own: 0 for `rubric`, -100 for `self_reward`.
        - `high`: highest score; None = the mode's own: 10 for `rubric`, 100 for `self_reward`.
        - `worth`: label -> its value, in the mode `labels`. The default is Tree of Thoughts'.
        - `num_samples`: replies that are sampled and summed, in the mode `labels`.
        - `reading`: how replies are read: as they are meant, or as the published code reads them (`labels`,
          `self_reward`, `tenths` and `vote`).
        - `max_replies`: most replies to one question: a reply that cannot be read is answered with its fault.
        """
        if mode not in get_args(Mode):
            raise ConfigError(f"judge {name!r}: mode = {mode!r}; allowed are {', '.join(get_args(Mode))}")
        if min(max_replies, num_samples) < 1:
            raise ConfigError(f"judge {name!r}: {max_replies=!r}, {num_samples=!r}: at least 1 is needed")
        if num_samples > 1 and mode != "labels":
            raise ConfigError(f"judge {name!r}: {num_samples=!r} are summed in the mode labels alone, not in {mode!r}")
        if reading not in get_args(Reading) or (reading == "as_published" and mode not in PUBLISHED):
            raise ConfigError(
                f"judge {name!r}: reading = {reading!r}; allowed are {', '.join(get_args(Reading))}, the latter in the "
                f"modes {', '.join(sorted(PUBLISHED))}"
            )
        if not worth or not all(map(math.isfinite, worth.values())) or any(word != _plain(word) for word in worth):
            raise ConfigError(
                f"judge {name!r}: worth = {dict(worth)!r}; labels in small letters, each with a finite number"
            )
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
        self._worth: Final = worth
        self._num_samples: Final = num_samples
        self._reading: Final[Reading] = reading
        self._max_replies: Final = max_replies

    @property
    def default_action(self) -> ActionConfig:
        """The default prompt of the mode, asked of the policy's engine."""
        labels = sorted(self._worth, key=lambda label: -self._worth[label])
        return ActionConfig(
            edge="quotes",
            role="judge",
            template=prompt(self._mode, rubric=self._rubric, low=self.low, high=self.high, labels=labels),
            sampling=Sampling(temperature=TEMPERATURES.get(self._mode, 0.0)),
        )

    def check(self, action: ActionConfig) -> None:
        """Refuse an action that is not for judges, or whose template does not cite what is judged."""
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
        """The dialogues needed: one per node and sample, one for a vote, one for each order of a pair."""
        num_dialogues = {"vote": 1, "pairwise": 2}.get(self._mode, num_nodes * self._num_samples)
        return Sitting(num_dialogues, 1 if self._hears_one else self._max_replies)

    async def judge_by(
        self, dialogue: Dialogue, nodes: Sequence[Sequence[Branch]], problem: Problem
    ) -> Sequence[Verdict]:
        """One verdict per node; value and part `raw` are the model's number. For labels, the sum; for a vote, 1 for the
        choice and 0 for the others; for a pair, the share of the two orders that chose the node. Raises
        `JudgeError`."""
        match self._mode:
            case "vote":
                return await self._voted(dialogue, [contexts[-1] for contexts in nodes])
            case "pairwise":
                return await self._compared(dialogue, [contexts[-1] for contexts in nodes])
            case "labels":
                return [await self._labelled(dialogue, contexts) for contexts in nodes]
            case _:
                return [await self._graded(dialogue, contexts) for contexts in nodes]

    async def _graded(self, dialogue: Dialogue, contexts: Sequence[Branch]) -> Verdict:
        text, num_replies = await self._heard(dialogue, contexts)
        return _verdict(None if text is None else self._number(text), num_replies)

    async def _labelled(self, dialogue: Dialogue, contexts: Sequence[Branch]) -> Verdict:
        """A sample that cannot be read counts as the mean of the others; with the published reading, as 0."""
        heard = [await self._heard(dialogue, contexts) for _ in range(self._num_samples)]
        read = [text for text, _ in heard if text is not None]
        value = label_value(read, worth=self._worth, reading=self._reading)
        whole = None if value is None else value * self._num_samples / len(read)
        return _verdict(whole, sum(num_replies for _, num_replies in heard))

    async def _voted(self, dialogue: Dialogue, branches: Sequence[Branch]) -> list[Verdict]:
        text, num_replies = await self._heard(dialogue, branches)
        chosen = None if text is None else votes([text], len(branches), reading=self._reading)
        values = [None if chosen is None else float(chosen[i]) for i in range(len(branches))]
        return [Verdict(value, {"num_replies": float(num_replies)}) for value in values]

    async def _compared(self, dialogue: Dialogue, branches: Sequence[Branch]) -> list[Verdict]:
        """Ask in both orders, because models prefer a position. If one order cannot be read, both verdicts are None."""
        if len(branches) != 2:
            raise JudgeError(f"judge {self.name!r} compares two nodes, got {len(branches)}")
        there, num_there = await self._heard(dialogue, branches)
        back, num_back = await self._heard(dialogue, branches[::-1])
        parts = {"num_replies": float(num_there + num_back)}
        if there is None or back is None:
            return [Verdict(None, parts)] * 2
        first = ((vote(there) == 1) + (vote(back) == 2)) / 2
        return [Verdict(first, parts), Verdict(1 - first, parts)]

    async def _heard(self, dialogue: Dialogue, contexts: Sequence[Branch]) -> tuple[str | None, int]:
        """The first readable reply (None = there was none), and the number of replies."""
        reply = await dialogue.open(contexts)
        if self._hears_one:
            return reply.text, 1
        for number in range(1, self._max_replies + 1):
            is_cut = reply.is_cut and self._reading == "corrected"
            fault = CUT if is_cut else self._fault(reply.text, len(contexts))
            if fault is None:
                return reply.text, number
            if number < self._max_replies:
                reply = await dialogue.correct(fault)
        return None, self._max_replies

    @property
    def _hears_one(self) -> bool:
        """Whether only the first reply of a dialogue counts."""
        return self._reading == "as_published" and self._mode != "self_reward"

    @property
    def _is_of_several(self) -> bool:
        return self._mode in ("vote", "pairwise")

    def _number(self, text: str) -> float | None:
        """The number in a reply; None = no number in the expected place."""
        match self._mode:
            case "self_reward":
                return self._integer(text)
            case "rubric":
                scores = _SCORE.findall(text.strip().rpartition("\n")[2])
                return float(scores[-1]) if scores else None
            case "labels":
                return label_value([text], worth=self._worth)
            case "tenths":
                return tenths(text, reading=self._reading)
            case "vote" | "pairwise":
                return vote(text)

    def _integer(self, text: str) -> float | None:
        """An integer and nothing else. The published reading takes whatever Python reads as one."""
        if self._reading == "corrected" and not _INTEGER.fullmatch(text.strip()):
            return None
        try:
            return float(int(text))
        except (OverflowError, ValueError):
            return None

    def _fault(self, text: str, num_nodes: int) -> str | None:
        """The fault of a reply, as the model is told; None = it is fine."""
        number = self._number(text)
        if number is None:
            return self._unreadable
        low, high = -math.inf, math.inf
        if self._is_of_several:
            low, high = 1, num_nodes
        elif self._mode in RANGES and self._reading == "corrected":
            low, high = self.low, self.high
        return None if low <= number <= high else f"{number:g} is out of range; allowed is {low:g} to {high:g}"

    @property
    def _unreadable(self) -> str:
        """What the model is told if its reply has no number."""
        match self._mode:
            case "self_reward":
                return NO_INTEGER
            case "rubric":
                wanted = '"Score: " and the number'
            case "labels":
                wanted = f"one of {', '.join(self._worth)}, and nothing else"
            case "tenths":
                wanted = f'"Thus the correctness {SCORE} " and an integer from 1 to 10'
            case "vote" | "pairwise":
                wanted = f'"The {CHOICE}" and its number'
        return f"there is nothing to read; write on the last line {wanted}"


def _verdict(number: float | None, num_replies: int) -> Verdict:
    parts = {"num_replies": float(num_replies)}
    return Verdict(number, parts if number is None else {"raw": number, **parts})


def _plain(label: str) -> str:
    """A label in the form in which replies are compared with it."""
    return label.strip().rstrip(".").casefold()
