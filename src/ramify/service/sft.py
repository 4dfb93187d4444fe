"""SFT: rollout functions that sample nothing. They make training data of written answers.

Set `service.rollout_function = "ramify.service.sft.generate_rollout"`. It trains what the assistant wrote: the label
(`service.label_key` names its column), or the assistant's turns in the column `messages`. It trains no prompt and no
observation. A demonstration becomes a tree with `written` segments; its examples are made like those of any tree.

slime's own `slime.rollout.sft_rollout.generate_rollout` stands for `slime_rollout`: whole conversations in the model's
chat template, with slime's ids, loss masks and rewards (`loss_masks.py`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ramify.core.codec import Codec
from ramify.core.command import Grow
from ramify.core.errors import ConfigError
from ramify.core.format import Format, Span, span_ids
from ramify.core.growth import Done, Growth
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.core.tree import Step, Tree
from ramify.formats.calls import CALL, CALL_END
from ramify.formats.chat_probe import Message
from ramify.formats.thoughts import THINK, THINK_END
from ramify.rows.sample import Sample, SampleStatus
from ramify.rows.sft import examples
from ramify.rows.slime import sft_samples
from ramify.runner.formats import chat_options, chat_template, model_folder
from ramify.runner.work import prompt_segments
from ramify.service.loss_masks import LossMasks, refuse_tokenizer
from ramify.service.source import Groups, SampleSource
from ramify.tasks.data_columns import CONVERSATION

MESSAGES = "messages"
"""The public column of turns after the question, each `{"role": ..., "content": ...}`."""
WRITTEN = "assistant"
"""The role whose turns are trained."""
TOOLS = "tools"
"""The public column of the tools that a conversation is told of, as slime's `--tool-key` names it."""


def generate_rollout(args: Any, rollout_id: int, data_source: SampleSource, evaluation: bool = False) -> Groups:
    """A batch of written samples, one per group. Raises `ConfigError` for a row without a written answer, and for an
    evaluation."""
    _refuse_evaluation(evaluation)
    groups = data_source.get_samples(args.rollout_batch_size)
    return [[_filled(group[0], args.run.codec, args.run.format)] for group in groups]


def slime_rollout(args: Any, rollout_id: int, data_source: SampleSource, evaluation: bool = False) -> Groups:
    """A batch of written conversations, one per group, as slime's SFT makes it (THUDM/slime
    slime/rollout/sft_rollout.py). Raises `ConfigError` for a conversation that cannot be masked as slime masks it, and
    for an evaluation."""
    _refuse_evaluation(evaluation)
    masks = _loss_masks(args)
    groups = data_source.get_samples(args.rollout_batch_size)
    return [[_masked(group[0], masks)] for group in groups]


def demonstration(problem: Problem, turns: Sequence[tuple[str, str]], codec: Codec, format: Format) -> Tree:
    """A tree of one path. `turns` are (role, text) after the question: the assistant's turns are written, the others
    given. If the tokenizer has an end token, it follows the last turn."""
    tree = Tree(problem, codec, prompt_segments(codec, format.open(problem.for_agents())), seed=0)
    segments = [
        Segment("written", token_array(span_ids(codec, _spoken(text, format))))
        if role == WRITTEN
        else Segment("given", token_array(codec.encode(text)))
        for role, text in turns
    ]
    if codec.eos_id is not None:
        segments.append(Segment("written", token_array((codec.eos_id,))))
    growth = Growth(tree)
    command = growth.ask(Grow(0))
    growth.grow(command, Step(tuple(segments), stop="end_of_sequence"))
    growth.end(command, Done())
    return tree


def _loss_masks(args: Any) -> LossMasks:
    """Masks by the chat template and the tokenizer of the engine's model."""
    if chat_options(args.config).system:
        raise ConfigError("format_options.system is not said in written conversations: put it into each of them")
    if (folder := model_folder(args.config.engine)) is not None:
        refuse_tokenizer(folder, args.loss_mask_type)
    plain, with_tools = (chat_template(args.config, has_tools=has_tools) for has_tools in (False, True))

    def render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], has_header: bool) -> str:
        return (with_tools if tools else plain)(messages, tools, has_header)

    return LossMasks(args.loss_mask_type, render, args.run.codec)


def _masked(sample: Sample, masks: LossMasks) -> Sample:
    """The sample, filled with the conversation in its metadata."""
    metadata = dict(sample.metadata)
    messages = metadata.pop(CONVERSATION)
    try:
        ids, mask = masks(messages, _tools(metadata))
    except ConfigError as error:
        raise ConfigError(f"conversation {metadata['uid']!r}: {error}") from error
    if not any(mask):
        raise ConfigError(f"conversation {metadata['uid']!r} has nothing of the assistant to train: leave it out")
    response = mask[mask.index(1) :]
    return replace(
        sample,
        status=SampleStatus.COMPLETED,
        rollout_id=sample.index,
        prompt=messages,
        tokens=ids,
        response_length=len(response),
        loss_mask=response,
        reward=0.0,
        metadata=metadata,
    )


def _tools(metadata: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The tools in the row's column `tools`: a list, or its JSON text; none if there is no such column."""
    tools = metadata.get(TOOLS)
    if isinstance(tools, str):
        with suppress(ValueError):
            tools = json.loads(tools)
    if tools is None:
        return ()
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, Mapping) for tool in tools):
        raise ConfigError(f"the column {TOOLS!r} holds {tools!r:.80}; give a list of tools, or leave it out")
    return tools


def _refuse_evaluation(evaluation: bool) -> None:
    if evaluation:
        raise ConfigError("written samples cannot be evaluated: set service.eval_function, or leave service.eval out")


def _spoken(text: str, format: Format) -> list[Span]:
    """An assistant's turn. The marks of thoughts and of actions are the tokens that a model samples for them; whatever
    else the turn spells is text."""
    marks = {THINK, THINK_END, CALL, CALL_END, *format.stops, *(stop.replace("</", "<") for stop in format.stops)}
    parts = re.split("(" + "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) + ")", text)
    return [Span(part, is_trusted=part in marks) for part in parts]


def _filled(sample: Sample, codec: Codec, format: Any) -> Sample:
    """The written sample, with the numbers of the sample that was drawn."""
    problem = Problem(str(sample.metadata["uid"]), str(sample.prompt), public=sample.metadata)
    tree = demonstration(problem, _turns(sample), codec, format)
    (made,) = sft_samples(examples(tree, leaves="written"))
    made.index, made.group_index, made.rollout_id = sample.index, sample.group_index, sample.index
    made.prompt, made.label = sample.prompt, sample.label
    return made


def _turns(sample: Sample) -> list[tuple[str, str]]:
    """(role, text) of each turn that was written for a sample."""
    messages = sample.metadata.get(MESSAGES)
    if messages is None and sample.label is not None:
        return [(WRITTEN, sample.label)]
    is_list = isinstance(messages, list | tuple) and all(isinstance(each, Mapping) for each in messages)
    turns = [(each.get("role"), each.get("content")) for each in messages or ()] if is_list else []
    is_sound = all(isinstance(role, str) and isinstance(text, str) for role, text in turns)
    if not is_sound or not any(role == WRITTEN and text for role, text in turns):
        raise ConfigError(
            f"{sample.metadata['uid']!r} has no written answer: name the column of the answer with service.label_key, "
            f"or give a column {MESSAGES!r} of turns with a role and a content; it has {messages!r:.80}"
        )
    return turns
