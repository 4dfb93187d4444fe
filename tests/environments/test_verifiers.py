"""Tasksets of verifiers as an environment. The toy package is written by the test."""

import asyncio
import importlib
import json
import random
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("verifiers", reason="needs verifiers==0.4.0, in an environment of its own")
    import verifiers.v1 as vf
    from verifiers.v1.mcp import Toolset, ToolsetConfig

from tests.environments.toy_vault import VAULT
from tests.environments.verifiers_loop import LAST, dialling, grown_chains, own_traces

import ramify
from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec
from ramify.core.environment import AgentTurn, Observation
from ramify.core.errors import ConfigError, JudgeError, ToolError
from ramify.core.problem import Problem
from ramify.core.segment import Segment, token_array
from ramify.environments.check import EnvironmentCheck
from ramify.environments.task import EnvironmentTask
from ramify.environments.verifiers import Verifiers
from ramify.testing.scripted import Scripted

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's
NO_WORDS = Branch(ByteCodec(is_exact=True), 0, ())
PLANTED = "PLANTED-SECRET"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("packages")
    (path / "toy_vault_pkg.py").write_text(VAULT, "utf-8")
    sys.path.insert(0, str(path))
    importlib.invalidate_caches()
    yield path
    sys.path.remove(str(path))


def turned(digit: int) -> AgentTurn:
    return AgentTurn(tool="dial_turn", arguments=json.dumps({"digit": digit}))


LOOK = AgentTurn(tool="dial_look", arguments="{}")
TURNS = [*map(turned, range(-1, 10)), LOOK, LOOK]


def problem(environment: Verifiers, index: int = 0) -> Problem:
    return environment.problems("train", index + 1, 0)[index]


def code(environment: Verifiers, index: int = 0) -> str:
    return problem(environment, index).secret["task"]["code"]


async def played(environment: Verifiers, turns: Sequence[AgentTurn]) -> Any:
    episode = await environment.open(problem(environment), 0)
    return episode, [await episode.step(turn, 0) for turn in turns]


# -- what the model and the judges see ------------------------------------------------------------------------------


def test_a_problem_opens_with_the_messages_and_keeps_the_rest_secret():
    found = problem(Verifiers(name="toy_vault_pkg"))
    assert found.question == "You open vaults.\n\nOpen vault 0."
    assert found.public["messages"] == [
        {"role": "system", "content": "You open vaults."},
        {"role": "user", "content": "Open vault 0."},
    ]
    assert PLANTED not in repr(found.for_agents())
    assert found.secret["task"]["planted"] == PLANTED


def test_a_name_of_the_hub_is_reduced_as_verifiers_reduces_it():
    environment = Verifiers(name="somebody/toy-vault-pkg@1.2", options={"num_tasks": 3})
    assert [each.uid for each in environment.problems("train", 3, 0)] == [
        f"somebody/toy-vault-pkg@1.2-{i}" for i in range(3)
    ]
    with pytest.raises(ConfigError, match="has 3 tasks; ask for at most as many, not 4"):
        environment.problems("train", 4, 0)


def test_the_tools_are_named_and_described_as_in_verifiers():
    look, turn = sorted(Verifiers(name="toy_vault_pkg").schemas, key=lambda each: each["name"])
    assert (look["name"], look["description"]) == ("dial_look", "Look at the dial.")
    assert turn["parameters"]["properties"]["digit"]["type"] == "integer"


async def test_calls_change_the_state_and_the_toolset():
    _, seen = await played(Verifiers(name="toy_vault_pkg"), [turned(1), LOOK, turned(2), LOOK])
    assert seen[2].text == "click 2: 12"
    assert json.loads(seen[3].text) == {"dialled": "12", "looks": 2}


async def test_a_call_that_raises_is_an_error_for_the_model_and_leaves_the_state():
    _, seen = await played(Verifiers(name="toy_vault_pkg"), [turned(1), turned(-1), LOOK])
    assert seen[1] == Observation("Error executing tool turn: the dial has no -1", status="error")
    assert json.loads(seen[2].text)["dialled"] == "1"


async def test_a_stop_condition_ends_the_path_and_a_limit_truncates_it():
    environment = Verifiers(name="toy_vault_pkg", max_turns=4)
    _, seen = await played(environment, [turned(int(digit)) for digit in code(environment)])
    assert [each.end for each in seen] == [None, None, "done"]
    _, seen = await played(environment, [LOOK] * 4)
    assert [each.end for each in seen] == [None, None, None, "truncated"]


async def test_the_score_is_the_weighted_sum_of_the_rewards():
    environment = Verifiers(name="toy_vault_pkg")
    secret = code(environment)
    episode, _ = await played(environment, [turned(int(digit)) for digit in secret])
    before = episode.digest()
    verdict = await episode.score(NO_WORDS, problem(environment))
    assert (verdict.value, verdict.parts) == (2.0, {"turns": 3.0, "results": 2.0, "is_open": 2.0, "said": 0.0})
    assert episode.digest() == before
    episode, _ = await played(environment, [turned(0), AgentTurn(text=f"{LAST} {secret[0]}")])
    verdict = await episode.score(NO_WORDS, problem(environment))
    assert (verdict.value, verdict.parts["said"], verdict.parts["results"]) == (0.5, 0.5, 1.0)


async def test_the_words_of_a_turn_that_was_cut_are_the_last_reply():
    environment = Verifiers(name="toy_vault_pkg")
    episode, _ = await played(environment, [LOOK])
    words = f"<think>hm</think>{LAST} {code(environment)[0]}"
    codec = ByteCodec(is_exact=True)
    piece = Piece(0, Segment("sampled", token_array(codec.encode(words))))
    verdict = await episode.score(Branch(codec, 0, (piece,)), problem(environment))
    assert (verdict.value, verdict.parts["turns"]) == (0.5, 2.0)


# -- forks ----------------------------------------------------------------------------------------------------------


async def test_a_fork_equals_a_fresh_replay_and_moves_nobody_else():
    environment = Verifiers(name="toy_vault_pkg")
    rng = random.Random(0)
    num_steps = 0
    while num_steps < 1000:
        path = [rng.choice(TURNS) for _ in range(rng.randrange(8))]
        trunk, past = await played(environment, path)
        if any(each.end for each in past):
            continue
        branches = [(await trunk.fork(), [rng.choice(TURNS) for _ in range(3)]) for _ in range(3)]
        before = trunk.digest()
        seen = {id(branch): [await branch.step(turn, 0) for turn in turns] for branch, turns in branches}
        assert trunk.digest() == before is not None
        for branch, turns in branches:
            alone, again = await played(environment, [*path, *turns])
            assert again == [*past, *seen[id(branch)]]
            assert alone.digest() == branch.digest()
            num_steps += len(again)


@pytest.mark.parametrize("branching", ["fork", "replay"])
async def test_the_check_finds_no_fault(branching: Any):
    check = EnvironmentCheck(Verifiers(name="toy_vault_pkg", branching=branching), TURNS)
    assert [each for each in await check.findings() if each.fault] == []
    assert check.num_digests == check.num_steps > 100


@pytest.mark.parametrize("preset", ["arpo", "offline", "chains", "mcts"])
@pytest.mark.parametrize("branching", ["fork", "replay"])
def test_trees_grow_and_no_text_tells_the_secret(preset: str, branching: Any):
    options: dict[str, Any] = {"growth.max_response_tokens": 2000, "max_failed_share": 0.0}
    if preset == "mcts":
        options |= {"strategy.options.judge": "environment", "strategy.options.outcome": "environment"}
        options |= {"strategy.options.oracle": "declared"}
    grown = ramify.rollout_sync(
        task=EnvironmentTask(Verifiers(name="toy_vault_pkg", branching=branching)),
        engine=Scripted(dialling), preset=preset, prompts=2, seed=1, **options,
    )  # fmt: skip
    assert (grown.report.failed_trees, grown.report.failed_leaves) == (0, 0)
    num_calls = 0
    for tree in grown.trees:
        for node in range(len(tree)):
            for segment in tree.segments(node):
                num_calls += segment.tool_call is not None
                assert PLANTED not in tree.codec.decode(segment.ids)
    assert num_calls


def test_forked_and_replayed_trees_are_the_same():
    grown = [grown_chains(Verifiers(name="toy_vault_pkg", branching=each), "arpo") for each in ("fork", "replay")]
    assert grown[0] == grown[1]
    assert {reward for _, _, reward, _ in grown[0]} >= {0.0, 2.0}


@pytest.mark.slow
async def test_verifiers_own_loop_gives_the_same_rewards(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(folder))
    environment = Verifiers(name="toy_vault_pkg")
    leaves = await _grown_elsewhere(environment)
    chains = [(int(uid.rpartition("-")[2]), turns) for uid, turns, _, _ in leaves]
    for (_, _, reward, parts), trace in zip(leaves, await own_traces(environment._loaded, chains), strict=True):
        assert not trace.errors
        assert trace.reward == reward
        assert {name: each.value for name, each in trace.rewards.items()} == {n: parts[n] for n in trace.rewards}
        assert trace.metrics == {name: parts[name] for name in trace.metrics}


async def _grown_elsewhere(environment: Verifiers) -> list[Any]:
    return (await asyncio.to_thread(grown_chains, environment, "chains"))[:4]


# -- what is wrong is told ------------------------------------------------------------------------------------------

COUNTER: list[int] = []


class Data(vf.TaskData):
    answer: str = PLANTED


class Plain(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def one(self, trace) -> float:
        return 1.0


class Box(Toolset[ToolsetConfig, vf.State]):
    TOOL_PREFIX = None

    @vf.tool
    async def push(self) -> str:
        """Push."""
        COUNTER.append(1)
        return str(len(COUNTER))


def of(task: type[vf.Task[Any, Any, Any]], **data: Any) -> Verifiers:
    class Own(vf.Taskset[task, vf.TasksetConfig]):
        def load(self):
            while True:
                yield task(task.data_type()(**{"prompt": "Act.", **data}), self.config.task)

    Own.INFINITE = True
    return Verifiers(taskset=Own(vf.TasksetConfig()), name="own")


async def scored(task: type[vf.Task[Any, Any, Any]]) -> Any:
    environment = of(task)
    environment.check_start()
    episode = await environment.open(problem(environment), 0)
    await episode.step(AgentTurn(text="done"), 0)
    return await episode.score(NO_WORDS, problem(environment))


async def test_an_object_is_a_taskset_too_even_an_infinite_one():
    assert len(of(Plain).problems("train", 7, 0)) == 7
    assert (await scored(Plain)).value == 1.0


async def test_a_reward_that_raises_is_named_with_its_words():
    class Broken(Plain):
        @vf.reward
        async def bad(self, trace) -> float:
            raise LookupError("no such thing")

    with pytest.raises(JudgeError, match="'bad' of the task Broken raised LookupError: no such thing"):
        await scored(Broken)


async def test_a_reward_that_is_no_number_is_named():
    class Broken(Plain):
        @vf.reward
        async def bad(self, trace) -> float:
            return float("nan")

    with pytest.raises(JudgeError, match=r"no finite numbers: \{'bad': nan\}"):
        await scored(Broken)


async def test_a_task_without_a_reward_has_no_score():
    class Unscored(vf.Task[Data, vf.State, vf.TaskConfig]):
        @vf.metric
        async def length(self, trace) -> float:
            return 4.0

    verdict = await scored(Unscored)
    assert (verdict.value, verdict.parts) == (None, {"length": 4.0})


async def test_a_tool_that_vanishes_is_an_error_for_the_model():
    environment = Verifiers(name="toy_vault_pkg")
    episode, _ = await played(environment, [])
    episode._toolsets[0].turn = None
    observed = await episode.step(turned(1), 0)
    assert observed.status == "error"
    assert "Error executing tool turn" in observed.text


async def test_a_toolset_with_a_global_is_found_by_the_check():
    class Boxed(Plain):
        @classmethod
        def toolsets(cls, config):
            return [Box(ToolsetConfig())]

    found = {each.rule: each.fault for each in await EnvironmentCheck(of(Boxed)).findings()}
    assert "the state is shared" in (found["a replay gives the same"] or "")


class Words(Toolset[ToolsetConfig, vf.State]):
    """What a taskset looks up."""

    num_made = 0

    async def setup(self):
        Words.num_made += 1
        self.words = {"sum": "the total", "code": "three digits"}

    @vf.tool
    def mean(self, word: str) -> str:
        """Look up a word."""
        return self.words[word]


async def test_a_toolset_of_the_taskset_serves_all_branches():
    class Library(vf.Taskset[Plain, vf.TasksetConfig]):
        def load(self):
            yield Plain(Data(prompt="Act."), self.config.task)

        @classmethod
        def toolsets(cls, config):
            return [Words(ToolsetConfig())]

    environment = Verifiers(taskset=Library(vf.TasksetConfig()))
    assert environment.name == "Library"
    call = AgentTurn(tool="words_mean", arguments="sum")
    for _ in range(2):
        episode, seen = await played(environment, [call, AgentTurn(tool="words_mean", arguments="nothing")])
        assert [each.text for each in seen] == ["the total", "Error executing tool mean: 'nothing'"]
        assert (await (await episode.fork()).step(call, 0)).text == "the total"
    assert Words.num_made == 1
    await environment.let_go()


async def test_a_toolset_that_cannot_be_copied_says_what_to_do():
    class Locked(Toolset[ToolsetConfig, vf.State]):
        async def setup(self):
            self.lines = (line for line in "abc")

        @vf.tool
        async def read(self) -> str:
            """Read a line."""
            return next(self.lines)

    class Reading(Plain):
        @classmethod
        def toolsets(cls, config):
            return [Locked(ToolsetConfig())]

    environment = of(Reading)
    episode, seen = await played(environment, [AgentTurn(tool="locked_read", arguments="{}")])
    assert (seen[0].text, episode.digest()) == ("a", None)
    with pytest.raises(ToolError, match="set branching = 'replay'"):
        await episode.fork()
    assert (await episode.score(NO_WORDS, problem(environment))).value == 1.0


class NeedsRuntime(Plain):
    @vf.reward
    async def built(self, trace, runtime) -> float:
        return 1.0


class Intercepts(Plain):
    @vf.intercept
    async def shorten(self, request: vf.Request) -> None:
        return None


class StopsResponse(Plain):
    @vf.stop
    async def long(self, response: vf.Response) -> bool:
        return False


class Remote(Plain):
    @classmethod
    def toolsets(cls, config):
        return [Box(ToolsetConfig(url="http://127.0.0.1:1/mcp"))]


class Twice(Plain):
    @classmethod
    def toolsets(cls, config):
        return [Box(ToolsetConfig()), Box(ToolsetConfig())]


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (NeedsRuntime, "NeedsRuntime needs a runtime (NeedsRuntime.built)"),
        (Intercepts, "has @vf.intercept (shorten)"),
        (StopsResponse, "@vf.stop 'long' of the task StopsResponse reads a Request or a Response"),
    ],
)
def test_what_a_tree_cannot_have_is_refused_by_name(task: Any, words: str):
    with pytest.raises(ConfigError, match=re.escape(words)):
        of(task).check_start()


@pytest.mark.parametrize(
    ("task", "words"), [(Remote, "is a server at"), (Twice, "two tools of the taskset are called")]
)
def test_toolsets_that_cannot_be_used_are_refused(task: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        _ = of(task).schemas


def test_a_task_without_a_prompt_is_refused():
    with pytest.raises(ConfigError, match="needs a prompt"):
        problem(of(Plain, prompt=None))


def test_a_package_with_its_own_env_is_refused(folder: Path):
    own = "\nclass OwnEnv(vf.Env[vf.EnvConfig]):\n    async def run(self, task, agents):\n        pass\n"
    text = VAULT.replace('__all__ = ["VaultTaskset"]', f'{own}\n__all__ = ["VaultTaskset", "OwnEnv"]')
    (folder / "toy_own_env.py").write_text(text, "utf-8")
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match="has its own environment OwnEnv"):
        Verifiers(name="toy_own_env").check_start()


def test_a_package_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="cannot load the taskset 'no_such_taskset'"):
        Verifiers(name="no_such_taskset").check_start()


@pytest.mark.parametrize(
    ("options", "words"), [({}, "needs a taskset"), ({"name": "a", "max_turns": 0}, "max_turns = 0; it is at least 1")]
)
def test_bad_options_are_refused(options: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        Verifiers(**options)
