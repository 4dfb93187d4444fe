"""SFT: a rollout function that samples nothing. It makes training data of written answers (requirement S3.9).

Set `service.rollout_function = "ramify.service.sft.generate_rollout"`. It trains what the assistant wrote: the label
(`service.label_key` names its column), or the assistant's turns in the column `messages`. It trains no prompt and no
observation. A demonstration becomes a tree with `written` segments; its examples are made like those of any tree.
"""

import re
from collections.abc import Mapping, Sequence
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
from ramify.formats.thoughts import THINK, THINK_END
from ramify.rows.sample import Sample
from ramify.rows.sft import examples
from ramify.rows.slime import sft_samples
from ramify.runner.work import prompt_segments
from ramify.service.source import Groups, SampleSource

MESSAGES = "messages"
"""The public column of turns after the question, each `{"role": ..., "content": ...}`."""
WRITTEN = "assistant"
"""The role whose turns are trained."""


def generate_rollout(args: Any, rollout_id: int, data_source: SampleSource, evaluation: bool = False) -> Groups:
    """A batch of written samples, one per group. Raises `ConfigError` for a row without a written answer, and for an
    evaluation."""
    if evaluation:
        raise ConfigError("written samples cannot be evaluated: set service.eval_function, or leave service.eval out")
    groups = data_source.get_samples(args.rollout_batch_size)
    return [[_filled(group[0], args.run.codec, args.run.format)] for group in groups]


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
