"""Parameter: one name that slime's users know, and the settings of ours that its value becomes.

Owns how values are translated; which names there are is the table's (`parameters.py`). Pure: values in, values out.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ramify.core.errors import ConfigError

Status = Literal["setting", "trainer", "refused"]
Args = Mapping[str, Any]
"""All arguments by their names, with underscores; those that are None are left out."""
Translate = Callable[[Any, Args], Mapping[str, Any]]
"""(value, all arguments) -> settings by dotted path."""

EVAL: Final = "service.eval.NAME"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One name."""

    name: str
    default: Any
    """slime's; None = it has none."""
    status: Status
    settings: tuple[str, ...]
    """Dotted paths of what it sets; NAME stands for each data set of `eval_prompt_data`."""
    means: str
    """For people: what it does here, why it has no effect, or what to use in its place."""
    translate: Translate


def setting(
    name: str, default: Any, path: str, means: str = "", *, by: Callable[[Any], Any] = lambda x: x
) -> Parameter:
    return Parameter(name, default, "setting", (path,), means, lambda value, args: {path: by(value)})


def several(name: str, default: Any, paths: Iterable[str], means: str, translate: Translate) -> Parameter:
    return Parameter(name, default, "setting", tuple(paths), means, translate)


def of_eval(name: str, default: Any, path: str, means: str = "") -> Parameter:
    """A setting of every data set to evaluate on."""

    def translate(value: Any, args: Args) -> dict[str, Any]:
        return {f"service.eval.{data}.{path}": value for data, _ in _eval_data(args.get("eval_prompt_data", ()))}

    return Parameter(name, default, "setting", (f"{EVAL}.{path}",), means, translate)


def trainer(name: str, default: Any, means: str) -> Parameter:
    return Parameter(name, default, "trainer", (), means, lambda value, args: {})


def refused(name: str, default: Any, instead: str) -> Parameter:
    def translate(value: Any, args: Args) -> dict[str, Any]:
        if value != default and value != [] and value is not False:
            raise ConfigError(f"{name} = {value!r} is refused: {instead}")
        return {}

    return Parameter(name, default, "refused", (), instead, translate)


def flag(name: str, path: str, on: Any, means: str) -> Parameter:
    """A switch, off by default: `path` becomes `on` where it is set."""
    return Parameter(name, False, "setting", (path,), means, lambda value, args: {path: on} if value else {})


def per_engine(value: Any, args: Args) -> dict[str, Any]:
    """Whole cards; or a share of one, which is what the walkthrough of slime has as the default, 0.2."""
    if isinstance(value, float) and 0 < value < 1:
        return {"service.pool.num_gpus_per_engine": 1, "service.pool.gpu_fraction": value}
    if int(value) != value:
        raise ConfigError(f"rollout_num_gpus_per_engine = {value!r}: whole cards, or a share of one below 1")
    return {"service.pool.num_gpus_per_engine": int(value)}


def over_sampling(value: Any, args: Args) -> dict[str, Any]:
    """slime counts all groups that are begun, we count those beyond the batch."""
    if "rollout_batch_size" not in args:
        raise ConfigError(f"over_sampling_batch_size = {value!r} needs rollout_batch_size beside it")
    if value < args["rollout_batch_size"]:
        raise ConfigError(
            f"over_sampling_batch_size = {value!r}: at least rollout_batch_size = {args['rollout_batch_size']!r}"
        )
    return {"service.over_sampling": value - args["rollout_batch_size"]}


def trainer_cards(value: Any, args: Args) -> dict[str, Any]:
    return {"service.pool.num_trainer_gpus": _trainer_gpus(args)}


def colocated(value: Any, args: Args) -> dict[str, Any]:
    """Engines that are not said to be on other cards have all of the trainer's."""
    if not value:
        return {}
    cards = {} if "rollout_num_gpus" in args else {"service.pool.num_gpus": _trainer_gpus(args)}
    return {"service.pool.colocate": True, **cards}


def _trainer_gpus(args: Args) -> Any:
    return args.get("actor_num_nodes", 1) * args.get("actor_num_gpus_per_node", 8)


def router_ip(value: Any, args: Args) -> dict[str, Any]:
    return {"service.pool.router": "external", "service.pool.router_ip": value}


def router_port(value: Any, args: Args) -> dict[str, Any]:
    kind = "own" if args.get("sglang_router_ip") is None else "external"
    return {"service.pool.router": kind, "service.pool.router_port": value}


def metadata(value: Any, args: Args) -> dict[str, Any]:
    """All columns go along where none is named; slime's own default is such a name."""
    return {} if value == "metadata" else {"data.public": [value]}


def template_variables(value: Any, args: Args) -> dict[str, Any]:
    variables = json.loads(value) if isinstance(value, str) else value
    return {"format_options.variables": dict(variables)} if variables else {}


def function(path: str, own: str) -> Translate:
    """A function that is named; slime's own default is what we do without one."""
    return lambda value, args: {} if value == own else {path: value}


def _eval_data(value: Any) -> Iterator[tuple[str, str]]:
    """(name, path) of `name path name path …`."""
    words = [value] if isinstance(value, str) else list(value)
    if len(words) % 2:
        raise ConfigError(f"eval_prompt_data = {words!r}: a name and a path for each data set")
    names = words[::2]
    if len(set(names)) < len(names) or any("." in name or not name for name in names):
        raise ConfigError(f"eval_prompt_data = {words!r}: each data set has a name of its own, without a dot")
    yield from zip(names, words[1::2], strict=True)


def eval_paths(value: Any, args: Args) -> dict[str, Any]:
    """Each with the columns of the run, unless there are others for evaluations."""
    columns = {"question": args.get("input_key"), "answer": args.get("label_key")}
    columns |= {"question": args.get("eval_input_key", columns["question"])}
    columns |= {"answer": args.get("eval_label_key", columns["answer"])}
    settings: dict[str, Any] = {}
    for name, path in _eval_data(value):
        settings[f"service.eval.{name}.data.path"] = path
        settings |= {f"service.eval.{name}.data.{key}": column for key, column in columns.items() if column is not None}
    return settings


def external_engines(value: Any, args: Args) -> dict[str, Any]:
    addresses = [value] if isinstance(value, str) else list(value)
    urls = [address if "://" in address else f"http://{address}" for address in addresses]
    return {"engine.base_url": ",".join(urls)}
