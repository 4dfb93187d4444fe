"""Judge formats: the format and tokenizer in which a judge asks its model.

A model with the run's tokenizer is asked in the run's format. Any other model gets its own contexts in its own
tokenizer: chat messages if its engine takes them, else its model's chat template, else the bare prompt. In those
contexts the judged text is quoted as text, as the run's format reads it, so no token of one tokenizer enters a context
of the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ramify.config.run_config import EngineConfig
from ramify.core.branch import Branch
from ramify.core.codec import Codec
from ramify.core.engine import Engine
from ramify.core.format import Format, MessageFormat, Span
from ramify.core.problem import Problem
from ramify.engines.chat_template import load_template
from ramify.formats.chat import Chat
from ramify.formats.messages import Messages, MessagesOptions
from ramify.formats.refine import Refine
from ramify.formats.tags import TagFormat, quoted
from ramify.runner.formats import model_folder
from ramify.runner.sampler import Sampler

BARE: Final = TagFormat(template="{question}", stops_at_answer=False)
"""Only the prompt. The answer may stand between tags, as in a run with a tag format."""
IN_MESSAGES: Final = Messages(BARE, options=MessagesOptions(system=""))


@dataclass(frozen=True, slots=True)
class JudgeFormat:
    """How the judges that use one action ask."""

    sampler: Sampler
    format: Format
    """The format of its turns."""
    codec: Codec
    reader: Format | None = None
    """The run's format, which reads the quoted text; None = `format` does."""

    def open(self, template: str, contexts: Sequence[Branch], problem: Problem) -> Sequence[Span]:
        """A fresh context: the template filled with what it quotes."""
        if self.reader is None:
            return self.format.quote(template, contexts, problem)
        return self.format.open(Problem(problem.uid, _cited(self.reader, template, contexts, problem)))


def is_spoken_to(engine: Engine, codec: Codec, format: Format) -> bool:
    """Whether an engine can use the run's format with this codec."""
    is_in_messages = format.speaks == "messages" if isinstance(format, Refine) else isinstance(format, MessageFormat)
    is_taken = is_in_messages or engine.capabilities.has_token_ids
    return is_taken and engine.codec.sha256 == codec.sha256


def format_for(engine: Engine, config: EngineConfig) -> Format:
    """The format of another engine's contexts. Raises `ConfigError` if the model's folder has no chat template."""
    if not engine.capabilities.has_token_ids:
        return IN_MESSAGES
    named = config.options.get("tokenizer")
    folder = model_folder(config) if named is None else Path(str(named))
    return BARE if folder is None else Chat(load_template(folder), codec=engine.codec)


def _cited(reader: Format, template: str, contexts: Sequence[Branch], problem: Problem) -> str:
    """The template filled with what it quotes, without any turn of the run's format around it."""
    if isinstance(reader, Refine):
        spans = replace(reader, speaks="messages", system="").quote(template, contexts, problem)
    else:
        spans = quoted(template, contexts, problem.question, answer=reader.answer)
    return "".join(span.text for span in spans)
