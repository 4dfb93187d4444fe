"""The environment `repair`: small Python repositories with failing tests, and a shell to repair them.

Repositories are drawn by a seed (`repair_repositories.py`); nothing is downloaded. A problem's public columns hold its
files, which are written into the workspace when an episode opens. The hidden tests are its secret: they run on a fork
of the leaf, and no branch sees them. The score is 1 if all of them pass.

The runner of the hidden tests imports nothing that the agent wrote: every call of the repository is a process of its
own, and what it returns is compared outside that process. A fresh name of the folder and Python's `-I` keep files of
the agent from standing in for the tests or for `unittest`.
"""

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Final

from ramify.core.branch import Branch
from ramify.core.environment import AgentTurn, Noise, Observation, RewardRule, Takes
from ramify.core.errors import ConfigError, ToolError
from ramify.core.judge import Verdict
from ramify.core.problem import Problem
from ramify.core.tool import STATE_DIGEST, STATEFUL, Branching
from ramify.environments.repair_repositories import MAX_BUGS, SPLITS, Repository, repositories
from ramify.workspaces.shell import ForkScore, RemoteSession, Shell, ShellSession, score_on_fork
from ramify.workspaces.starter import LOST

FILES: Final = "files"
"""Public column: path in `/w` -> content."""
TESTS: Final = "tests"
"""Secret column: the file of the hidden tests."""
NUM_TESTS: Final = "num_tests"
"""Secret column: how many hidden tests there are."""
QUESTION: Final = (
    "The Python package `{package}` in /w has bugs, and these tests fail: {failing}. Repair it, so that every function "
    "does what its docstring says; hidden tests will check that. You have the tool `shell`, which runs a command in "
    "/w, at most {max_commands} times. `python3 -m unittest` runs the tests. When the package is repaired, end your "
    "turn without a command."
)
HIDDEN: Final = """import os, subprocess, sys, unittest

os.remove(__file__)
CASES = {cases!r}


class Hidden(unittest.TestCase):
    pass


def check(self, module, function, arguments, expected):
    code = f"from {{module}} import {{function}}; print(repr({{function}}(*{{arguments}})))"
    python = [sys.executable, "-X", "pycache_prefix=/tmp/fresh", "-c", code]
    done = subprocess.run(python, cwd="/w", stdin=subprocess.DEVNULL, capture_output=True, text=True)
    self.assertEqual(done.stdout.splitlines()[-1:], [expected])


for number, case in enumerate(CASES):
    setattr(Hidden, f"test_{{number}}", lambda self, case=case: check(self, *case))
"""
TIMEOUT_S: Final = 20.0
UNITTEST_TIME: Final = re.compile(r"^(Ran \d+ tests?) in [\d.]+s$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class CodeRepair:
    """Repositories with one or two bugs. A session needs Linux and bubblewrap."""

    num_bugs: int | None = None
    """Bugs of a repository, 1 or 2; None = a mix."""
    max_commands: int = 12
    """Commands until the episode is truncated."""
    shell: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the tool `shell`. Its `timeout_s` is 20 if it is not given; it holds for a command, and for all hidden
    tests together, and must be below `tools.deadline_s`."""
    name: ClassVar[str] = "repair"
    takes: ClassVar[Takes] = "calls"
    branching: ClassVar[Branching] = "fork"
    noise: ClassVar[Noise] = "none"
    reward: ClassVar[RewardRule] = "last"
    needs_secret: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.num_bugs is not None and not 1 <= self.num_bugs <= MAX_BUGS:
            raise ConfigError(f"num_bugs = {self.num_bugs!r}: a repository has 1 to {MAX_BUGS} bugs")
        if self.max_commands < 1:
            raise ConfigError(f"max_commands = {self.max_commands!r}: at least 1 command is allowed")
        object.__setattr__(self, "shell", {"timeout_s": TIMEOUT_S, **self.shell})
        Shell(**self.shell)

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return (Shell(**self.shell).schema,)

    def problems(self, split: str, num_problems: int, seed: int) -> Sequence[Problem]:
        """Distinct repositories of one split. A seed always gives the same ones."""
        if split not in SPLITS:
            raise ConfigError(f"split {split!r}: repair has {' and '.join(map(repr, SPLITS))}")
        return [self._problem(each, split) for each in repositories(split, num_problems, seed, num_bugs=self.num_bugs)]

    def examples(self, problem: Problem) -> Sequence[AgentTurn]:
        """Commands that read, test and change the repository."""
        path = next(path for path in problem.public[FILES] if path.startswith(f"{problem.public['package']}/"))
        commands = (
            "ls",
            f"cat {path}",
            "python3 -m unittest",
            f"echo '# seen' >> {path}",
            f"rm {path}",
            "pwd; cd /tmp",
        )
        return [AgentTurn(tool="shell", arguments=command) for command in commands]

    def check_start(self) -> None:
        """Try the walls of the workspace. Raises `ConfigError` that names what this machine lacks."""
        try:
            asyncio.run(self._shell.try_walls())
        except ToolError as error:
            raise ConfigError(f"the environment 'repair' cannot run here: {error}") from error

    async def open(self, problem: Problem, seed: int) -> "RepairEpisode":
        session = await self._shell.open(problem)
        await session.upload({path: text.encode() for path, text in problem.public[FILES].items()})
        return RepairEpisode(self, session, await session.digest())

    async def let_go(self) -> None:
        """Remove the files of all states."""
        shell = self.__dict__.pop("_shell", None)
        if shell is not None:
            await shell.let_go()

    @cached_property
    def _shell(self) -> Shell:
        return Shell(**self.shell)

    def _problem(self, repository: Repository, split: str) -> Problem:
        package, failing = repository.package, ", ".join(repository.failing)
        cases = [(f"{package}.{c.module}", c.function, c.arguments, c.expected) for c in repository.hidden]
        return Problem(
            f"repair {repository.key}",
            QUESTION.format(package=package, failing=failing, max_commands=self.max_commands),
            {FILES: dict(repository.files), "package": package},
            {TESTS: HIDDEN.format(cases=cases), NUM_TESTS: len(cases)},
            split,
        )


@dataclass(slots=True)
class RepairEpisode:
    """A repository after some commands."""

    environment: CodeRepair
    session: ShellSession | RemoteSession
    state_sha256: str
    num_commands: int = 0

    async def step(self, turn: AgentTurn, seed: int) -> Observation:
        """Run a command. The time that `unittest` took is cut from the text, so that a replay reads the same."""
        found = await self.session.call(turn.arguments)
        self.state_sha256 = found.metadata[STATE_DIGEST]
        found = replace(found, text=UNITTEST_TIME.sub(r"\1", found.text))
        if found.status not in STATEFUL:
            return found
        self.num_commands += 1
        is_last = self.num_commands >= self.environment.max_commands
        return replace(found, end="truncated" if is_last else None)

    async def fork(self) -> "RepairEpisode":
        return replace(self, session=await self.session.fork())

    def digest(self) -> str | None:
        return self.state_sha256

    async def score(self, branch: Branch, problem: Problem) -> Verdict | None:
        """1 if all hidden tests pass, else 0. Parts: the share of hidden tests that pass, and the number of
        commands."""
        folder = f"hidden_{secrets.token_hex(8)}"
        tests = {f"{folder}/test_hidden.py": str(problem.secret[TESTS]).encode()}
        try:
            found = await score_on_fork(self.session, tests, f"python3 -I -m unittest discover -s {folder}")
        except ToolError as error:
            if error.reason == LOST:
                raise
            found = ForkScore(None, str(error), "error")  # what the agent left has no room for the tests
        share = share_passed(found, problem.secret[NUM_TESTS])
        return Verdict(float(share == 1), {"passed": share, "commands": float(self.num_commands)})

    async def close(self) -> None:
        await self.session.close()


def share_passed(found: ForkScore, num_tests: int) -> float:
    """The share of `num_tests` tests that passed, as `unittest` said; 0 where it did not come to its end."""
    ran = re.findall(r"^Ran (\d+) tests? in", found.output, re.MULTILINE)
    if found.exit_code is None or ran[-1:] != [str(num_tests)]:
        return 0.0
    if found.exit_code == 0:
        return 1.0
    failed = sum(map(int, re.findall(r"(?:failures|errors)=(\d+)", found.output.splitlines()[-1])))
    return max(num_tests - failed, 0) / num_tests if failed else 0.0
