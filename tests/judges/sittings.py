"""Judges that ask, in whole runs: a scripted model, one chain or several, and Judge commands by plan."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.runner.parts import Plan, Small, grown, tip

from ramify.config.run_config import JudgeConfig
from ramify.core.command import Command, Grow, Judge, Outcome
from ramify.core.engine import Engine
from ramify.core.tree import ROOT, Tree
from ramify.runner.library import Rollout
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import Rule, ScriptedTurn

ERROR = "Error: "


def judged_by(grades: Sequence[str], *, is_asked: Callable[[str], bool] = lambda text: "Problem:" in text) -> Rule:
    """A policy that answers, and a judge that says `grades`: one for each time it has been corrected."""

    def rule(turn: ScriptedTurn) -> str:
        if not is_asked(turn.context):
            return f"<answer>{turn.seed % 10}</answer>"
        return grades[min(turn.context.count(ERROR), len(grades) - 1)]

    return rule


class Judged(Plan):
    """Grows `num` chains to their ends, then asks for `commands` of their tips."""

    num: ClassVar[int] = 1
    heard: ClassVar[list[Outcome]]

    def judgements(self, tips: Sequence[int]) -> Sequence[Command]:
        return [Judge((tips[0],), "grader")]

    def wanted(self, tree: Tree) -> Sequence[Command] | None:
        if not self.told:
            return [Grow(ROOT) for _ in range(self.num)]
        if len(self.told) == self.num:
            return self.judgements([tip(outcome) for outcome in self.told])
        return None

    def tell(self, tree: Tree, outcome: Outcome) -> None:
        super().tell(tree, outcome)
        type(self).heard.append(outcome)


@dataclass
class Sat:
    """A run and the outcomes of its judgements."""

    result: Rollout
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def tree(self) -> Tree:
        (tree,) = self.result.trees
        return tree


def sat(
    engine: Engine | Rule,
    /,
    *,
    options: Mapping[str, Any],
    plan: type[Judged] = Judged,
    judgements: Callable[[Sequence[int]], Sequence[Command]] | None = None,
    num: int = 1,
    task: Any = None,
    **fields: Any,
) -> Sat:
    """A run of one problem whose judge `grader` is of kind `llm`. The plan is asked twice over: see `Driver`."""
    asked = judgements or (lambda tips: [Judge((tips[0],), "grader")])
    methods = {"num": num, "heard": [], "judgements": lambda self, tips: asked(tips)}
    own = type("Planned", (plan,), methods)
    judges = {"grader": JudgeConfig(kind="llm", options=options)}
    made = engine if not callable(engine) else Scripted(engine)
    result = grown(own, made, task=task or Small(), judges=judges, **fields)
    return Sat(result, _of_one(own.heard)[num:])


def _of_one(heard: Sequence[Outcome]) -> list[Outcome]:
    """Each outcome once: the strategy and its twin hear them both."""
    return list({outcome.command_id: outcome for outcome in heard}.values())
