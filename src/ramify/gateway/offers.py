"""Offers: what a gateway serves under which name: each search preset that its engine can run, and one sample.

All offers share the engines. A preset that the engine cannot run is not served; the reason is kept. Unless the user
names another format, conversations are read: by `conversation` on an engine of messages, and by `chat` on one of token
ids whose model has a chat template. `best_of_n` is then graded by the model itself, unless the user names a judge.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ramify import plugins
from ramify.config.configure import Resolved
from ramify.config.presets import preset, preset_names
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError, nearest
from ramify.core.strategy import SearchStrategy
from ramify.engines.retrying import Retrying, retrying
from ramify.formats.conversation import ACTIONS
from ramify.gateway.api_error import ApiError
from ramify.runner.build import build_engine, build_task
from ramify.runner.folder import REQUESTS
from ramify.runner.prepared import Prepared, prepare
from ramify.strategies.parts.steering import REWARD

SAMPLE: Final = "chains"
"""Preset of a plain model: one chain."""
SAMPLE_FOLDER: Final = "one-sample"
AT: Final = "@"
"""Between the name of the model and that of a search."""
TEMPLATED: Final = frozenset({"local", "sglang", "vllm"})
"""Engines of token ids whose models have chat templates."""
NO_LIMIT: Final = 1 << 20
"""Trees in flight that a run allows: the limits of the clients bind earlier."""
GRADE: Final[Mapping[str, Any]] = {
    "judges.grade.kind": "llm",
    "judges.grade.options": {"mode": "self_reward", "max_replies": 3},
    "strategy.options.judge": "grade",
}
"""How `best_of_n` is judged where the user names no judge: as in the preset `mctsr`."""

Resolve = Callable[[str | None, Mapping[str, Any]], Resolved]
"""(preset, further settings) -> the configuration of the command line with them."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One model of the gateway."""

    name: str
    title: str
    prepared: Prepared
    is_sample: bool = False
    """Whether it is the engine's model itself, without a search."""

    @property
    def folder(self) -> str:
        """Name of the folder of its trees."""
        return SAMPLE_FOLDER if self.is_sample else self.name


@dataclass(frozen=True, slots=True)
class Offers:
    """All models of the gateway, by name."""

    model: str
    """Name of the engine's model."""
    engine: Retrying
    named: Mapping[str, Offer]
    not_served: Mapping[str, str] = field(default_factory=dict[str, str])
    """Preset -> why the engine cannot run it."""

    def find(self, name: str) -> Offer:
        """The offer of this name. Raises `ApiError` (404)."""
        search = name.removeprefix(f"{self.model}{AT}")
        if (found := self.named.get(search)) is not None:
            return found
        if search in self.not_served:
            why = f"the search {search!r} is not served: {self.not_served[search]}"
        else:
            why = f"there is no model {name!r}; {nearest(search, self.named)}"
        raise ApiError(404, why, param="model", code="model_not_found")

    def __iter__(self) -> Iterator[Offer]:
        return iter(self.named.values())


def offers_of(resolve: Resolve, presets: Sequence[str] = ()) -> Offers:
    """What is served with this configuration: these presets, or every one that the engine can run. Contacts no server.
    Raises `ConfigError`, also if the engine cannot run a preset that is named."""
    base = resolve(None, {}).config
    _refuse_run_limits(base)
    parts = _SharedParts.of(base)
    model = base.engine.model or base.engine.name
    named = {model: Offer(model, "one sample of the model", _prepared(resolve, SAMPLE, parts), is_sample=True)}
    not_served: dict[str, str] = {}
    for name in presets or _searches():
        try:
            made = _judged(_prepared(resolve, name, parts))
        except ConfigError as error:
            if presets:
                raise ConfigError(f"--preset {name}: {error}") from error
            not_served[name] = str(error)
            continue
        if isinstance(made.strategy.sample(), SearchStrategy):
            named[name] = Offer(name, preset(name).summary, made)
        elif presets:
            raise ConfigError(f"--preset {name}: it grows trees for training and chooses no answer; name a search")
    return Offers(model, parts.engine, named, not_served)


def _searches() -> Iterator[str]:
    """Presets whose strategies choose an answer."""
    for name in preset_names():
        strategy = preset(name).values.get("strategy", {}).get("name", SAMPLE)
        if hasattr(plugins.find("strategy", strategy), "candidates"):
            yield name


@dataclass(frozen=True, slots=True)
class _SharedParts:
    """The engines, which all offers share."""

    engine: Retrying
    engines: Mapping[str, Retrying]

    @classmethod
    def of(cls, config: RunConfig) -> "_SharedParts":
        others = {name: retrying(build_engine(each), each.retry) for name, each in config.engines.items()}
        return cls(retrying(build_engine(config.engine), config.engine.retry), others)

    @property
    def takes_messages(self) -> bool:
        return not self.engine.capabilities.has_token_ids


def _prepared(resolve: Resolve, name: str, parts: _SharedParts) -> Prepared:
    """The parts of the runs of one preset. Raises `ConfigError`."""
    settings: dict[str, Any] = {
        "data.questions": [REQUESTS],
        "prompts": 1,
        "max_trees": NO_LIMIT,
        "max_failed_share": 1.0,
    }
    if name == SAMPLE:
        settings["strategy.options.n"] = 1
    found = resolve(name, settings)
    if parts.takes_messages or found.config.engine.name in TEMPLATED:
        settings |= _spoken(found, parts)
        found = resolve(name, {**settings, **_graded(found)})
    config = found.config
    if _is_open(found, "durability"):
        config = replace(config, durability="os")  # What was answered is not asked again after a power cut.
    return prepare(config, task=build_task(config), engine=parts.engine, engines=parts.engines, problems=())


def _spoken(found: Resolved, parts: _SharedParts) -> dict[str, Any]:
    """The settings of a conversation, if the user named no format of their own."""
    if not _is_open(found, "format"):
        return {}
    if not parts.takes_messages:
        actions = {f"actions.{name}.{field}": v for name, each in ACTIONS.items() for field, v in each.items()}
        return {"format": "chat", "format_options.opening": "messages"} | {
            path: value for path, value in actions.items() if _is_open(found, path)
        }
    own = [f"actions.{action}.template" for action in ACTIONS if "template" in ACTIONS[action]]
    replaced = [path for path in own if path in found.sources and _is_open(found, path)]
    return {"format": "conversation", **{path: ACTIONS[path.split(".")[1]]["template"] for path in replaced}}


def _graded(found: Resolved) -> Mapping[str, Any]:
    """The judge of `best_of_n`, if it needs one and the user named none."""
    strategy = found.config.strategy
    needs_one = strategy.name == "best_of_n" and strategy.options.get("vote") in ("best", "weighted")
    return GRADE if needs_one and strategy.options.get("judge") == REWARD else {}


def _judged(prepared: Prepared) -> Prepared:
    """The parts. Raises `ConfigError` if the search goes by the reward of answers, and nobody judges them."""
    options = prepared.config.strategy.options
    needs_scores = options.get("vote", "best") in ("best", "weighted")
    if (options.get("outcome") or options.get("judge")) == REWARD and needs_scores and not prepared.judging.leaf:
        name = prepared.config.strategy.name
        raise ConfigError(f"strategy {name!r} goes by the reward of its answers, and nobody judges them; name a judge")
    return prepared


def _is_open(found: Resolved, path: str) -> bool:
    """Whether the user left a setting as it is by default, or by the preset."""
    return found.sources.get(path, "preset ").startswith("preset ")


def _refuse_run_limits(config: RunConfig) -> None:
    limits = config.run_limits
    if limits.counted() or limits.seconds is not None:
        raise ConfigError(
            "run_limits: a gateway runs until it is stopped; bound each request by limits or --budget, and each client "
            "by --tokens-a-day"
        )
