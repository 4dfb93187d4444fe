"""Loss masks: a whole conversation as ids, and which of them are trained, as slime's SFT makes them.

`--loss-mask-type` names one of four ways (THUDM/slime slime/utils/mask_utils.py). Results are equal to slime's, or a
`ConfigError` says why not. All of them write text as slime does: what spells a token of the vocabulary becomes it.

qwen: each message is rendered alone, without the system message that the template adds.
qwen3: each message is rendered behind, or the first one before, a question that is cut off again. Results of tools that
follow one another are one turn.
qwen3_5: the conversation is rendered once, and what stands behind a header of the assistant is trained.
distill_qwen: the first message opens the conversation, and the content of the last one is trained.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Final

from ramify.config.service_config import LossMaskType
from ramify.core.codec import Codec
from ramify.core.errors import ConfigError
from ramify.formats.chat_probe import Message, RenderChat
from ramify.formats.thoughts import THINK

ASSISTANT: Final = "assistant"
PROBE: Final = {"role": "user", "content": "Which is longer?"}
DEEPSEEK: Final = "<｜Assistant｜>"  # noqa: RUF001 - DeepSeek's bars are full-width
"""A vocabulary with this token is masked by `distill_qwen` where `qwen` is named."""
HEADER: Final = "<|im_start|>assistant\n"
END: Final = "<|im_end|>"
TRAINED: Final = "step_loss_mask"
"""Key of a message: 0 = the message is not trained."""

Masked = tuple[list[int], list[int]]
"""(ids, which of them are trained: 1 or 0), equally long."""
Turn = Sequence[Message]
"""Messages that are rendered together: one, or results of tools that follow one another."""
Tools = Sequence[Mapping[str, Any]]
"""The tools that the conversation is told of, in OpenAI's JSON."""


class LossMasks:
    """Masks conversations in one way, with one template and tokenizer. Raises `ConfigError`."""

    def __init__(self, kind: LossMaskType, render: RenderChat, codec: Codec) -> None:
        if not codec.is_exact:
            raise ConfigError("conversations are trained as ids, and the engine takes chat messages: name another one")
        self._kind: LossMaskType = "distill_qwen" if kind == "qwen" and _has_token(codec, DEEPSEEK) else kind
        self._render = render
        self._codec = codec
        self._added: list[int] = []
        """What the template writes before every conversation without a system message."""
        self._num_header = 0
        """Ids of the header of an assistant's turn."""
        if self._kind in ("qwen", "qwen3"):
            self._measure()

    def __call__(self, messages: Sequence[Message], tools: Tools) -> Masked:
        """The ids and the mask of a conversation. Raises `ConfigError` if they would not be slime's."""
        _refuse_messages(messages)
        match self._kind:
            case "qwen":
                return self._joined([[message] for message in messages], tools, self._alone)
            case "qwen3":
                return self._joined(list(_turns(messages)), tools, self._beside)
            case "qwen3_5":
                return self._found(messages, tools)
            case "distill_qwen":
                return self._answered(messages, tools)

    def _ids(self, messages: Turn, tools: Tools = (), *, header: bool = False) -> list[int]:
        return self._encoded(self._render(messages, tools, header))

    def _encoded(self, text: str) -> list[int]:
        return self._codec.encode(text, allow_special=True)

    def _measure(self) -> None:
        """Find out what the template adds, from a conversation of two equal questions."""
        two, content = self._ids([PROBE, PROBE]), self._encoded(PROBE["content"])
        places = [n for n in range(len(two)) if two[n : n + len(content)] == content]
        if len(places) != 2:
            raise ConfigError(f"the chat template shows the content of a message {len(places)} times in 2 messages")
        num_after = len(two) - places[1] - len(content)
        num_before = places[1] - places[0] - len(content) - num_after
        self._num_header = len(self._ids([PROBE, PROBE], header=True)) - len(two)
        if not 0 <= num_before <= places[0] or self._num_header < 0:
            raise ConfigError("the chat template writes equal messages in different ways, so none can be cut out")
        self._added = two[: places[0] - num_before]
        if self._added and self._kind == "qwen3":
            raise ConfigError(
                "the chat template adds a system message of its own, and slime's 'qwen3' would cut as many tokens off "
                "every message: set loss_mask_type = 'qwen'"
            )

    def _alone(self, turn: Turn, tools: Tools | None) -> list[int]:
        """The ids of a message without those that the template adds. `tools` None = it is not the first message."""
        ids = self._ids(turn, tools or ())
        if tools is not None or turn[0]["role"] == "system":
            return ids
        return _behind(self._added, ids)

    def _beside(self, turn: Turn, tools: Tools | None) -> list[int]:
        """The ids of a turn before or behind a question. `tools` None = it is not the first turn."""
        probe = self._ids([PROBE])
        if tools is None:
            return _behind(probe, self._ids([PROBE, *turn]))
        return _behind(probe[::-1], self._ids([*turn, PROBE], tools)[::-1])[::-1]

    def _joined(self, turns: Sequence[Turn], tools: Tools, cut: Callable[[Turn, Tools | None], list[int]]) -> Masked:
        """The turns that `cut` gives one by one."""
        ids: list[int] = []
        mask: list[int] = []
        for place, turn in enumerate(turns):
            found = cut(turn, tools if place == 0 else None)
            ids += found
            mask += self._mask(turn[0], len(found))
        return ids, mask

    def _mask(self, message: Message, length: int) -> list[int]:
        if not _is_trained(message):
            return [0] * length
        if length < self._num_header:
            raise ConfigError("the chat template writes a message of the assistant without the header of a turn")
        return [0] * self._num_header + [1] * (length - self._num_header)

    def _found(self, messages: Sequence[Message], tools: Tools) -> Masked:
        """The whole conversation, trained between headers and ends. They are found in bytes: a token is trained if one
        of its bytes is."""
        _refuse_marks(messages, tools)
        text = self._render(messages, tools, False)
        ids, data = self._encoded(text), text.encode("utf-8", "replace")
        pieces = [self._codec.token_bytes(i) for i in ids]
        if b"".join(pieces) != data:
            raise ConfigError(
                "the tokenizer writes the conversation in another way than it is given, so nothing says which tokens "
                "are the assistant's: give it normalised text"
            )
        flags = bytearray(len(data))
        for start, end in _spans(data, messages):
            flags[start:end] = b"\1" * (end - start)
        ends = list(accumulate(map(len, pieces)))
        return ids, [int(any(flags[end - len(piece) : end])) for piece, end in zip(pieces, ends, strict=True)]

    def _answered(self, messages: Sequence[Message], tools: Tools) -> Masked:
        roles = [message["role"] for message in messages]
        if len(messages) != 2 or roles[1] != ASSISTANT or not isinstance(messages[1].get("content"), str):
            raise ConfigError(
                f"'distill_qwen' trains the last message behind the first, and this conversation has {len(messages)} "
                f"messages of {roles!r:.80}; give exactly two, the second a text of the assistant"
            )
        opening = self._ids(messages[:1], tools, header=True)
        answer = self._encoded(messages[1]["content"])
        return [*opening, *answer], [*[0] * len(opening), *[int(_is_trained(messages[1]))] * len(answer)]


def refuse_tokenizer(folder: Path, kind: LossMaskType) -> None:
    """Raise `ConfigError` if the tokenizer in `folder` would give slime other ids or offsets than those of the pieces
    that are joined here."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return
    for part in _parts(json.loads(path.read_bytes())):
        is_prefixed = part.get("add_prefix_space") is True or part.get("prepend_scheme") in ("first", "always")
        if part.get("type") == "Prepend" or is_prefixed:
            raise ConfigError(f"{path} puts a space before every text, which slime's masks of messages would hold")
        if kind == "qwen3_5" and part.get("type") == "ByteLevel" and part.get("trim_offsets") is True:
            raise ConfigError(f"{path} leaves white space out of its offsets, by which 'qwen3_5' finds trained tokens")


def _parts(whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The tables of a tokenizer's normalizer, pre-tokenizer and post-processor, at any depth."""
    waiting = [whole.get(name) for name in ("normalizer", "pre_tokenizer", "post_processor")]
    while waiting:
        match waiting.pop():
            case dict() as part:
                yield part
                waiting.extend(part.values())
            case list() as parts:
                waiting.extend(parts)
            case _:
                pass


def _turns(messages: Sequence[Message]) -> Iterator[Turn]:
    """Messages one by one; results of tools that follow one another together."""
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        together = list(group)
        yield from [together] if is_result else [[message] for message in together]


def _behind(start: Sequence[int], ids: list[int]) -> list[int]:
    if ids[: len(start)] != list(start):
        raise ConfigError(
            "the chat template writes a message in another way when others stand beside it, so slime's masks would cut "
            "into it"
        )
    return ids[len(start) :]


def _spans(data: bytes, messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    """(start, end) in bytes of what is trained of each message of the assistant."""
    at, header, begun = 0, HEADER.encode(), f"{THINK}\n".encode()
    for message in messages:
        if message["role"] != ASSISTANT:
            continue
        place = data.find(header, at)
        end = data.find(END.encode(), place + len(header))
        if place < 0 or end < 0:
            raise ConfigError(
                f"the chat template writes no {HEADER!r} or no {END!r} for a message of the assistant, which 'qwen3_5' "
                "looks for"
            )
        at = end + len(END) + data.startswith(b"\n", end + len(END))
        start = place + len(header)
        if _is_trained(message):
            yield start + (len(begun) if data.startswith(begun, start) else 0), at


def _is_trained(message: Message) -> bool:
    return message["role"] == ASSISTANT and message.get(TRAINED, 1) == 1


def _has_token(codec: Codec, spelling: str) -> bool:
    """Whether the vocabulary has this added token."""
    ids = codec.encode(spelling, allow_special=True)
    return len(ids) == 1 and ids != codec.encode(spelling)


def _refuse_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise ConfigError("the conversation holds no message")
    for place, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ConfigError(f"message {place} has no role: {message!r:.80}")
        if message.get(TRAINED, 1) not in (0, 1):
            raise ConfigError(f"message {place} has {TRAINED} = {message[TRAINED]!r:.80}: give 0 or 1, or leave it out")


def _refuse_marks(messages: Sequence[Message], tools: Tools) -> None:
    """Refuse a text that would be taken for the header or the end of a turn."""
    named = [*((f"message {n}", message) for n, message in enumerate(messages)), *(("a tool", tool) for tool in tools)]
    for what, value in named:
        text = json.dumps(value, ensure_ascii=False)
        if spelt := [mark for mark in (END, HEADER.split(ASSISTANT)[0]) if mark in text]:
            raise ConfigError(f"{what} spells {spelt[0]!r}, by which 'qwen3_5' finds the turns: take it out")
