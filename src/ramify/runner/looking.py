"""Looking: what reading a run needs, made from its header and from built-in parts alone.

The folder may be somebody else's. No plug-in is loaded, no tool or engine is made, and no problem is read. Of a model's
folder only the tokenizer is read, as data. What is missing has a stand-in (`unread`), or is refused by name.
"""

import hashlib
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ramify import plugins
from ramify.config.run_config import EngineConfig, RunConfig
from ramify.core.codec import ByteCodec, Codec
from ramify.core.engine import Capabilities
from ramify.core.errors import ConfigError, StoreError
from ramify.core.format import Equating, Format
from ramify.core.growth import GrowthRules
from ramify.core.strategy import SearchStrategy
from ramify.core.task import Task
from ramify.credit import PostHocRule
from ramify.engines.served.model import codec_in
from ramify.engines.tokenizer import TokenizerFile
from ramify.runner.answers import Answering
from ramify.runner.build import build_task
from ramify.runner.formats import build_format, model_folder
from ramify.runner.run_strategy import RunStrategy, StrategyTraits
from ramify.runner.unread import ALLOW, UnreadCodec, UnreadRule
from ramify.store.records import Header, ReadingValue, WeightsValue

IN_MESSAGES: Final = "openai"
"""The built-in engine without token ids."""
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_FILES: Final = (
    TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json",
)  # fmt: skip
MAX_TOKENIZER_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True)
class RunReading:
    """How the trees of a run are read."""

    codec: Codec
    rules: GrowthRules
    traits: StrategyTraits
    answering: Callable[[], Answering]
    """Raises `NotLoaded` if a plug-in reads the answers."""


def looked(config: RunConfig, header: Header) -> RunReading:
    """Raises `StoreError` if the run cannot be read so, and `ConfigError`."""
    with plugins.built_in_only():
        reading = header.reading or _reading(config, header)
        codec = _codec(config.engine, header.weights[0], is_text=reading.is_text)
        pairs = zip(reading.judges, header.weights[1:], strict=True)
        codecs = {action: _codec(_engine_of(config, action), weights) for action, weights in pairs}
        quoting = frozenset(name for name, action in config.actions.items() if action.edge == "quotes")
        rules = GrowthRules(reading.stops, quoting, codecs)
        traits = StrategyTraits(reading.post_hoc_reasons, _rule(config, reading), reading.planned_leaves)
    return RunReading(codec, rules, traits, lambda: _answering(config, codec))


def _engine_of(config: RunConfig, action: str) -> EngineConfig:
    name = config.actions[action].engine
    return config.engine if name == "policy" else config.engines[name]


def _rule(config: RunConfig, reading: ReadingValue) -> PostHocRule | None:
    """The rule by which the strategy forks finished paths. A strategy that is not built in leaves a stand-in."""
    if not reading.has_post_hoc_rule:
        return None
    try:
        return RunStrategy.of(config).traits(reading.stops).post_hoc
    except plugins.NotLoaded:
        return UnreadRule(config.strategy.name)


def _answering(config: RunConfig, codec: Codec) -> Answering:
    with plugins.built_in_only():
        sample, task = RunStrategy.of(config).sample(), build_task(config)
        format = _format(config, task, codec)
        own = format.is_same_answer if isinstance(format, Equating) else None
        vote = sample.vote if isinstance(sample, SearchStrategy) else "majority"
        return Answering(vote, format.answer, own or task.is_same_answer)


def _format(config: RunConfig, task: Task, codec: Codec) -> Format:
    """The format, without tools beside the task's: they are not made, and no answer is read by them."""
    speaks = Capabilities(config.engine.name, 1, has_token_ids=config.engine.name != IN_MESSAGES)
    return build_format(config, task, codec, tools=task.tools, engines=[speaks])


# -- tokenizers -------------------------------------------------------------------------------------------------------


def _codec(engine: EngineConfig, recorded: WeightsValue, *, is_text: bool = False) -> Codec:
    """The recorded tokenizer, if it is text or lies in the folder that the engine names."""
    if recorded.codec_sha256 == ByteCodec().sha256:
        return ByteCodec(is_exact=not is_text)
    unread = UnreadCodec(recorded.codec, recorded.codec_sha256, is_exact=not is_text)
    named = engine.options.get("tokenizer")
    folder = Path(named) if isinstance(named, str) else model_folder(engine)
    if folder is None or not (folder / TOKENIZER).exists():
        return unread
    _refuse_odd_files(folder)
    found = hashlib.sha256((folder / TOKENIZER).read_bytes()).hexdigest()
    if found == recorded.codec_sha256:
        return _in_folder(engine, folder)
    if plugins.is_built_in("engine", engine.name):
        raise StoreError(f"the run was begun with {recorded}, and {folder / TOKENIZER} is another one ({found[:12]}…)")
    return unread


def _in_folder(engine: EngineConfig, folder: Path) -> Codec:
    if engine.name != EngineConfig().name:
        return codec_in(folder)[0]
    try:
        return TokenizerFile(folder / TOKENIZER)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokenizer in {str(folder)!r} cannot be used: {error}") from error


def _refuse_odd_files(folder: Path) -> None:
    """Refuse files that are no files: opening a FIFO would wait for ever. Links may stand here: the hub's cache has
    them."""
    for path in (folder / name for name in TOKENIZER_FILES):
        if path.exists() and not (stat.S_ISREG(path.stat().st_mode) and path.stat().st_size <= MAX_TOKENIZER_BYTES):
            raise StoreError(f"{path} is no plain file of at most {MAX_TOKENIZER_BYTES:,} bytes; it is not opened")


# -- runs of earlier versions -----------------------------------------------------------------------------------------


def _reading(config: RunConfig, header: Header) -> ReadingValue:
    """What the header of an earlier version does not say, from built-in parts."""
    has_chat = config.format == "chat"
    judges = tuple(sorted(name for name, action in config.actions.items() if action.role == "judge"))
    if has_chat or config.tools.use or len(header.weights) not in (1, 1 + len(judges)):
        raise _untold("its format is made of a template or of tools")
    try:
        format = _format(config, build_task(config), ByteCodec())
        traits = RunStrategy.of(config).traits(format.stops)
    except plugins.NotLoaded as error:
        raise _untold(str(error)) from error
    return ReadingValue(
        format=type(format).__name__,
        stops=format.stops,
        judges=judges if len(header.weights) > 1 else (),
        is_text=config.engine.name == IN_MESSAGES,
        post_hoc_reasons=traits.post_hoc_reasons,
        has_post_hoc_rule=traits.post_hoc is not None,
        planned_leaves=traits.planned_leaves,
    )


def _untold(why: str) -> StoreError:
    return StoreError(f"an earlier version began this run and did not record how it is read: {why}; {ALLOW}")
