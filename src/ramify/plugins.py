"""Plug-ins: everything a configuration can name, found by name or by `path/to/file.py:Name`.

It owns one table, kind -> name -> "module:attribute". Nothing is imported before it is asked for. A fault in a name, a
file or its contents is a `ConfigError` that says where. What a plug-in does later is not checked here.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, Literal, get_args

from ramify.core.errors import ConfigError, RamifyError, is_interrupt, nearest, nearest_or_file

Kind = Literal[
    "strategy", "task", "environment", "engine", "format", "tool", "judge", "choose", "prune", "sample", "credit",
    "export", "step_parser", "equivalence",
]  # fmt: skip
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

TABLE: Final[Mapping[Kind, Mapping[str, str]]] = MappingProxyType(
    {
        "strategy": {
            "ab_mcts": "ramify.strategies.ab_mcts.a:ABMCTS",
            "ab_mcts_m": "ramify.strategies.ab_mcts.m:ABMCTSM",
            "at2po": "ramify.strategies.at2po:AT2PO",
            "beam": "ramify.strategies.beam:Beam",
            "best_first": "ramify.strategies.best_first:BestFirst",
            "best_of_n": "ramify.strategies.best_of_n:BestOfN",
            "chains": "ramify.strategies.chains:Chains",
            "deepsearch": "ramify.strategies.deepsearch:DeepSearch",
            "dvts": "ramify.strategies.dvts:DVTS",
            "lats": "ramify.strategies.lats:LATS",
            "mcts": "ramify.strategies.mcts:MCTS",
            "mctsr": "ramify.strategies.mctsr:MCTSr",
            "offline": "ramify.strategies.offline:Offline",
            "online": "ramify.strategies.online:Online",
            "particle_filter": "ramify.strategies.particle_filter:ParticleFilter",
            "rap": "ramify.strategies.rap:RAP",
            "rebase": "ramify.strategies.rebase:Rebase",
            "refine_chain": "ramify.strategies.refine_chain:RefineChain",
            "reject": "ramify.strategies.reject:Reject",
            "rstar_mcts": "ramify.strategies.rstar_mcts:RStarMCTS",
            "planned": "ramify.strategies.planned:Planned",
            "segments": "ramify.strategies.segments:Segments",
            "self_consistency": "ramify.strategies.self_consistency:SelfConsistency",
            "tot": "ramify.strategies.tot:ToT",
            "tree_grpo": "ramify.strategies.tree_grpo:TreeGRPO",
            "treepo": "ramify.strategies.treepo:TreePO",
            "treerl": "ramify.strategies.treerl:TreeRL",
        },
        "task": {
            "countdown": "ramify.tasks.countdown:Countdown",
            "data": "ramify.tasks.data:DataFile",
            "herds": "ramify.tasks.herds:Herds",
            "hops": "ramify.tasks.hops:Hops",
            "ledgers": "ramify.tasks.ledgers:Ledgers",
            "reasoning_gym": "ramify.tasks.reasoning_gym:ReasoningGym",
            "states": "ramify.tasks.states:StateTask",
        },
        "environment": {
            "gym": "ramify.environments.gym:Gym",
            "hops": "ramify.environments.hops:HopsLibrary",
            "inspect": "ramify.environments.inspect:Inspect",
            "verifiers": "ramify.environments.verifiers:Verifiers",
            "openenv": "ramify.environments.openenv:OpenEnv",
            "repair": "ramify.environments.repair:CodeRepair",
            "tau2": "ramify.environments.tau2:Tau2",
            "textarena": "ramify.environments.textarena:TextArena",
            "textworld": "ramify.environments.textworld:TextWorld",
            "trl": "ramify.environments.trl:Trl",
        },
        "engine": {
            "builtin": "ramify.engines.builtin:Builtin",
            "local": "ramify.engines.local:Local",
            "openai": "ramify.engines.openai:OpenAI",
            "scripted": "ramify.testing.scripted:Scripted",
            "sglang": "ramify.engines.served.sglang:Sglang",
            "simulated": "ramify.testing.simulated:Simulated",
            "states": "ramify.engines.states:StateEngine",
            "vllm": "ramify.engines.served.vllm:Vllm",
        },
        "format": {
            "arpo": "ramify.formats.arpo:ARPO",
            "chat": "ramify.formats.chat:Chat",
            "conversation": "ramify.formats.conversation:Conversation",
            "messages": "ramify.formats.messages:Messages",
            "refine": "ramify.formats.refine:Refine",
            "rstar": "ramify.formats.rstar:RStar",
            "search_r1": "ramify.formats.search_r1:SEARCH_R1",
        },
        "tool": {
            "calculator": "ramify.tools.calculator:Calculator",
            "mcp": "ramify.tools.mcp:Mcp",
            "python": "ramify.tools.python:Python",
            "retriever": "ramify.tools.retriever:Retriever",
            "search": "ramify.tools.search:Search",
            "shell": "ramify.workspaces.shell:Shell",
        },
        "judge": {
            "agreement": "ramify.judges.agreement:Agreement",
            "exact": "ramify.judges.exact:Exact",
            "function": "ramify.judges.function:FunctionJudge",
            "llm": "ramify.judges.llm:LlmJudge",
            "math": "ramify.judges.math:MathJudge",
            "process": "ramify.judges.process:ProcessJudge",
            "value": "ramify.judges.value:Value",
        },
        "choose": {
            "at2po": "ramify.strategies.parts.choose:at2po",
            "entropy": "ramify.strategies.parts.choose:entropy",
            "entropy_delta": "ramify.strategies.parts.choose:entropy_delta",
            "uniform": "ramify.strategies.parts.choose:uniform",
            "uniform_with_replacement": "ramify.strategies.parts.choose:uniform_with_replacement",
        },
        "prune": {
            "judged_below": "ramify.strategies.parts.prune:judged_below",
            "over_budget": "ramify.strategies.parts.prune:over_budget",
            "repeated_call": "ramify.strategies.parts.prune:repeated_call",
            "repetition": "ramify.strategies.parts.prune:repetition",
        },
        "sample": {
            "as_planned": "ramify.strategies.parts.sample:as_planned",
            "copies_of_last": "ramify.strategies.parts.sample:copies_of_last",
            "correct_first": "ramify.strategies.parts.sample:correct_first",
            "per_tree": "ramify.strategies.parts.sample:per_tree",
            "uniform": "ramify.strategies.parts.sample:uniform",
        },
        "step_parser": {
            "published": "ramify.formats.steps:published",
            "tags": "ramify.formats.steps:tagged",
        },
        "equivalence": {"text": "ramify.judges.exact:is_same_answer"},
        "credit": {},
        "export": {
            "arrays": "ramify.rows.arrays:write",
            "jsonl": "ramify.rows.jsonl:write",
            "parquet": "ramify.rows.parquet:write",
            "preference": "ramify.rows.preference:write",
            "search_r1": "ramify.rows.search_r1:write",
            "sft": "ramify.rows.sft:write",
            "slime": "ramify.rows.slime:write",
            "slime_train": "ramify.rows.slime:write_train_data",
            "verifiers": "ramify.rows.traces:write",
            "verl": "ramify.rows.verl:write",
        },
    }
)


METHODS: Final[Mapping[Kind, tuple[tuple[str, ...], ...]]] = MappingProxyType(
    {
        "strategy": (("ask", "tell", "is_done", "phase"),),
        "task": (("problems", "prune", "is_same_answer"),),
        "engine": (("generate", "close"),),
        "format": (("open", "quote", "read", "observe", "answer", "tools"),),
        "environment": (("problems", "open"),),
        "tool": (("open",), ("tools",)),
        "judge": (("judge",), ("judge_by",)),
    }
)
"""Kind -> the methods that it must have, or other methods instead. Any other kind is a function."""
ATTRIBUTES: Final[Mapping[Kind, tuple[str, ...]]] = MappingProxyType(
    {
        "environment": ("name", "takes", "branching", "noise", "reward", "needs_secret", "schemas"),
        "task": ("format", "tools", "judges"),
        "engine": ("codec", "capabilities"),
        "format": ("stops",),
    }
)
"""What else an object of a kind must have."""

_built_in_only: ContextVar[bool] = ContextVar("built_in_only", default=False)


class NotLoaded(RamifyError):
    """A plug-in was needed where only built-in ones may be loaded."""


@contextmanager
def built_in_only() -> Iterator[None]:
    """Load only built-in plug-ins meanwhile; any other raises `NotLoaded`. Looking at a run of somebody else runs none
    of that person's code."""
    token = _built_in_only.set(True)
    try:
        yield
    finally:
        _built_in_only.reset(token)


def is_built_in(kind: Kind, name: str | None) -> bool:
    return name in TABLE[kind]


def known(kind: Kind) -> tuple[str, ...]:
    """Built-in names of one kind."""
    return tuple(sorted(TABLE[kind]))


def find(kind: Kind, name: str) -> Any:
    """What `name` names: a built-in, `path/to/file.py:Name` or `package.module:Name`. Imports it. Raises
    `ConfigError`."""
    if _built_in_only.get() and not is_built_in(kind, name):
        raise NotLoaded(
            f"{kind} {name!r} is not built in, and looking at a run loads nothing that the run names; if you trust "
            "whoever made the run, --trust loads it"
        )
    place = TABLE[kind].get(name, name)
    source, colon, attribute = place.rpartition(":")
    if not colon or not source or not attribute:
        raise ConfigError(f"unknown {kind} {name!r}; {_hint(kind, name)}")
    found = _attribute(kind, name, source, attribute)
    if not is_built_in(kind, name) and (fault := _kind_fault(kind, found)):
        raise ConfigError(f"{kind} {name!r} ({place_of(name)}) {fault}")
    return found


def _kind_fault(kind: Kind, found: Any) -> str:
    """Why `found` is of the wrong kind; empty = it may be of the right one. What a class makes is checked when it is
    made."""
    if kind not in METHODS:
        return "" if callable(found) and not inspect.isclass(found) else f"is {_said(found)}; a function is needed"
    if kind == "strategy" and not inspect.isclass(found):
        return f"is no strategy: it is {_said(found)}, and a class is needed"
    return ""


def _lacking(kind: Kind, made: Any) -> str:
    """What an object lacks to be of its kind; empty = nothing."""
    wanted = [(*ATTRIBUTES.get(kind, ()), *methods) for methods in METHODS[kind]]
    lacking = [[name for name in names if not hasattr(made, name)] for names in wanted]
    return "" if [] in lacking else f"is no {kind}: it is {_said(made)}, and lacks {', '.join(lacking[0])}"


def _said(found: Any) -> str:
    if inspect.isclass(found):
        return "a class"
    return "a function" if inspect.isfunction(found) else f"{found!r:.80}"


def place_of(name: str) -> str:
    """`FILE, line N` of what is named, without loading it again; the name's file or module where it is not found."""
    source, _, attribute = name.rpartition(":")
    module = None if source.endswith(".py") else sys.modules.get(source)
    file = Path(source) if module is None else Path(module.__file__ or source)
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return str(file)
    return next((f"{file}, line {node.lineno}" for node in body if attribute in _bound(node)), str(file))


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement binds."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name for alias in node.names}
        case _:
            names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
            return {each.id for each in names if isinstance(each.ctx, ast.Store)}


def _hint(kind: Kind, name: str) -> str:
    if name.endswith(".py"):
        return f"say what is meant in that file: {name}:Name"
    return nearest_or_file(name, TABLE[kind])


def located(what: str, name: str) -> Any:
    """Find what a dotted path names: `package.module.attribute` as trainers write it, `package.module:attribute` or
    `path/to/file.py:attribute`. Imports it. Raises `ConfigError` that begins with `what`, the purpose."""
    source, colon, attribute = name.rpartition(":")
    if not colon:
        source, _, attribute = name.rpartition(".")
    if not source or not attribute:
        raise ConfigError(f"{what} {name!r}: name package.module.function or path/to/file.py:function")
    return _attribute(what, name, source, attribute)


def _attribute(what: str, name: str, source: str, attribute: str) -> Any:
    module = _file(Path(source)) if source.endswith(".py") else _module(source, name)
    try:
        return vars(module)[attribute]
    except KeyError:
        public = [key for key in vars(module) if not key.startswith("_")]
        raise ConfigError(f"{what} {name!r}: {source} has no {attribute!r}; {nearest(attribute, public)}") from None


def build(kind: Kind, name: str, /, **options: Any) -> Any:
    """What `name` names. A class is instantiated with `options`; an instance takes none. Raises `ConfigError`."""
    found = find(kind, name)
    if not inspect.isclass(found):
        if options:
            raise ConfigError(f"{kind} {name!r} is no class, so it takes no options, got {sorted(options)}")
        return found
    unknown = unknown_keywords(found, options)
    if unknown:
        raise ConfigError(f"{kind} {name!r}: {'; '.join(unknown.values())}")
    try:
        made = found(**options)
    except RamifyError:
        raise
    except (Exception, SystemExit) as error:  # boundary to a user's class, whatever its constructor raises
        at = "" if is_built_in(kind, name) else f" ({place_of(name)})"
        raise ConfigError(
            f"{kind} {name!r}{at} cannot be made with {options!r}: {type(error).__name__}: {error}"
        ) from error
    return made


def whole(kind: Kind, name: str, made: Any) -> Any:
    """`made`, which a plug-in made or is. Raises `ConfigError` with its file and line if it lacks what its kind has."""
    if kind in METHODS and not is_built_in(kind, name) and (fault := _lacking(kind, made)):
        raise ConfigError(f"{kind} {name!r} ({place_of(name)}) {fault}")
    return made


def config_class(strategy: Any) -> type[Any]:
    """The dataclass that holds a strategy's options: its class attribute `Config`."""
    at = f" ({place_of(f'{strategy.__module__}:{strategy.__qualname__}')})" if inspect.isclass(strategy) else ""
    config = inspect.getattr_static(strategy, "Config", None)
    if not inspect.isclass(strategy) or not inspect.isclass(config) or not is_dataclass(config):
        raise ConfigError(f"{strategy!r}{at} is no strategy, a class whose `Config` is the dataclass of its options")
    return config


def unknown_keywords(target: Any, options: Mapping[str, Any]) -> dict[str, str]:
    """Option -> what is wrong, for every option that the constructor of `target` does not take."""
    if not callable(target):
        return {key: f"unknown key {key!r}; it is no class, so it takes no options" for key in options}
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return {}
    names = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {key: f"unknown key {key!r}; {nearest(key, names)}" for key in options if key not in names}


def missing_keywords(target: Any, given: Collection[str]) -> list[str]:
    """Keywords that `target` needs and that are not in `given`."""
    parameters = inspect.signature(target).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return [key for key in needed if key not in given]


def options_of(target: Any, kind: type[Any]) -> frozenset[str]:
    """Options that a class takes as `kind`: their annotation is `kind`, alone or in a union."""
    if not inspect.isclass(target):
        return frozenset()
    parameters = inspect.signature(target).parameters.values()
    return frozenset(p.name for p in parameters if kind in (p.annotation, *get_args(p.annotation)))


def anchored(name: str) -> str:
    """`name` with an absolute path for its file, so that it means the same in another folder."""
    source, colon, attribute = name.rpartition(":")
    return f"{Path(source).resolve()}:{attribute}" if colon and source.endswith(".py") else name


def _module(source: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ImportError as error:
        is_file = Path(f"{source}.py").is_file()
        hint = f"; for the file here say {source}.py:{name.rpartition(':')[2]}" if is_file else ""
        raise ConfigError(f"{name!r} cannot be imported: {error}{hint}") from error
    except BaseException as error:  # boundary to a user's module, which may exit too
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise ConfigError(f"{name!r} does not import: {_last_place(error)}{type(error).__name__}: {error}") from error


def _file(path: Path) -> ModuleType:
    """Import a user's file, once per process. Its module can be found by name, so its classes can be pickled."""
    full = path.resolve()
    name = f"ramify_plugin_{full.stem}_{hashlib.sha256(str(full).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if not full.is_file():
        raise ConfigError(f"there is no file {str(path)!r} (looked for {full})")
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # boundary to a user's file, which may exit too: reported with its line
        del sys.modules[name]
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        said = f"{line_in(error, full)}{type(error).__name__}: {error}{_beside(error, full)}"
        raise ConfigError(f"{path} does not import: {said}") from error
    return module


def _beside(error: BaseException, path: Path) -> str:
    """What to do where a file imports one that stands beside it."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if name is None or not (path.parent / f"{name}.py").is_file():
        return ""
    return f". It stands beside this file, but its folder is not searched: PYTHONPATH={path.parent} ramify …"


def _last_place(error: BaseException) -> str:
    """`FILE, line N: ` of the last place that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def line_in(error: BaseException, path: Path) -> str:
    """`line N: ` of the last place in `path` that the error passed through."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: "
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""
