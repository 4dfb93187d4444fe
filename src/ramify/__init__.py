"""ramify: rollout trees for language-model agents, for training and for answering.

Every public name is here. Each is imported when it is first used, so that `import ramify` is fast.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ramify.core.notebook import draw_by
from ramify.moved import MovedModules
from ramify.version import __version__

if TYPE_CHECKING:
    from ramify.config.configure import resolve
    from ramify.config.run_config import RunConfig
    from ramify.core.action import ActionConfig
    from ramify.core.branch import Branch
    from ramify.core.codec import ByteCodec, Codec
    from ramify.core.command import (
        Cancel,
        Candidate,
        Close,
        Closed,
        Command,
        Failed,
        Fork,
        ForkRecord,
        Grow,
        Grown,
        Judge,
        Judged,
        Option,
        Outcome,
        Score,
        Tokens,
    )
    from ramify.core.engine import Capabilities, Engine, Generation, Request
    from ramify.core.environment import AgentTurn, Environment, Episode, Observation
    from ramify.core.errors import (
        ConfigError,
        ContractError,
        EngineError,
        ExportError,
        JudgeError,
        RamifyError,
        StoreError,
        ToolError,
    )
    from ramify.core.format import AnswerAction, Format, InvalidAction, Span, ToolAction
    from ramify.core.judge import Verdict
    from ramify.core.limits import Limits
    from ramify.core.problem import Problem
    from ramify.core.segment import Finish, Sampling, Segment, ToolCall
    from ramify.core.strategy import Phase, Strategy
    from ramify.core.task import Task
    from ramify.core.tool import Tool, ToolResult, ToolSession
    from ramify.core.tree import ROOT, Tree
    from ramify.runner.library import Rollout, Watched, rollout, rollout_sync, steps
    from ramify.runner.saved import Saved
    from ramify.runner.search import Found, FoundStep, ScoredState, search, search_async, search_steps
    from ramify.tools.function import tool

__all__ = [
    "ROOT",
    "ActionConfig",
    "AgentTurn",
    "AnswerAction",
    "Branch",
    "ByteCodec",
    "Cancel",
    "Candidate",
    "Capabilities",
    "Close",
    "Closed",
    "Codec",
    "Command",
    "ConfigError",
    "ContractError",
    "Engine",
    "EngineError",
    "Environment",
    "Episode",
    "ExportError",
    "Failed",
    "Finish",
    "Fork",
    "ForkRecord",
    "Format",
    "Found",
    "FoundStep",
    "Generation",
    "Grow",
    "Grown",
    "InvalidAction",
    "Judge",
    "JudgeError",
    "Judged",
    "Limits",
    "Observation",
    "Option",
    "Outcome",
    "Phase",
    "Problem",
    "RamifyError",
    "Request",
    "Rollout",
    "RunConfig",
    "Sampling",
    "Saved",
    "Score",
    "ScoredState",
    "Segment",
    "Span",
    "StoreError",
    "Strategy",
    "Task",
    "Tokens",
    "Tool",
    "ToolAction",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolSession",
    "Tree",
    "Verdict",
    "Watched",
    "__version__",
    "resolve",
    "rollout",
    "rollout_sync",
    "search",
    "search_async",
    "search_steps",
    "steps",
    "tool",
]

_MODULES = {
    "ramify.core.action": "ActionConfig",
    "ramify.core.branch": "Branch",
    "ramify.core.codec": "ByteCodec Codec",
    "ramify.core.command": (
        "Cancel Candidate Close Closed Command Failed Fork ForkRecord Grow Grown Judge Judged Option Outcome Score "
        "Tokens"
    ),
    "ramify.core.environment": "AgentTurn Environment Episode Observation",
    "ramify.core.engine": "Capabilities Engine Generation Request",
    "ramify.core.errors": (
        "ConfigError ContractError EngineError ExportError JudgeError RamifyError StoreError ToolError"
    ),
    "ramify.core.format": "AnswerAction Format InvalidAction Span ToolAction",
    "ramify.core.judge": "Verdict",
    "ramify.core.limits": "Limits",
    "ramify.core.problem": "Problem",
    "ramify.core.segment": "Finish Sampling Segment ToolCall",
    "ramify.core.strategy": "Phase Strategy",
    "ramify.core.task": "Task",
    "ramify.core.tool": "Tool ToolResult ToolSession",
    "ramify.core.tree": "ROOT Tree",
    "ramify.runner.library": "Rollout Watched rollout rollout_sync steps",
    "ramify.runner.saved": "Saved",
    "ramify.runner.search": "Found FoundStep ScoredState search search_async search_steps",
    "ramify.config.configure": "resolve",
    "ramify.config.run_config": "RunConfig",
    "ramify.tools.function": "tool",
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names.split()}
sys.meta_path.append(MovedModules())


def _frame_of(value: Any) -> str:
    from ramify.view.notebook import frame_of

    return frame_of(value)


draw_by(_frame_of)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'ramify' has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
