import re
from pathlib import Path

import numpy as np
import pytest

from ramify import plugins
from ramify.config.configure import resolve
from ramify.config.decode import decode
from ramify.config.presets import preset, preset_names, read_preset
from ramify.core.branch import Branch
from ramify.core.errors import ConfigError
from ramify.core.problem import Problem
from ramify.core.strategy import SearchStrategy
from ramify.runner.library import rollout_sync
from ramify.testing.scripted import Scripted
from ramify.testing.scripts import ScriptedTurn

ENDS_EARLY = ("deepsearch", "planned", "segments")
"""Strategies whose trees have fewer leaves than they may where paths end within the first steps, as here they do."""


def worth(branch: Branch, problem: Problem) -> float:
    """A judge of steps: what the last token says."""
    return int(branch.ids[-1]) % 7 / 7


def critic(turn: ScriptedTurn) -> str:
    """Answers, criticises and grades: what a model says that can do all of it."""
    return str(turn.seed % 201 - 100) if "grade" in turn.context.lower() else f"It is \\boxed{{{turn.seed % 5}}}."


LONG = ("rstar_mcts", "rstar_mcts_as_published")
NAMES = [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in preset_names()]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_grows_as_many_leaves_and_is_as_exact_as_it_says(name: str):
    about = preset(name)
    overrides = ["engine.name=scripted", "prompts=4", "seed=2", f"judges.process.kind={__file__}:worth"]
    is_refining = about.values.get("format") == "refine"
    more = ['data.questions=["a", "b", "c", "d"]'] if is_refining else []
    if about.values["strategy"]["name"] in ("beam", "rstar_mcts"):
        more = ["growth.max_response_tokens=256", "prompts=2"]
    config = resolve(preset=name, overrides=[*overrides, *more]).config
    grown = rollout_sync(config=config, engine=Scripted(critic) if is_refining else None)
    config = grown.config
    kind = plugins.find("strategy", config.strategy.name)
    options, _ = decode(plugins.config_class(kind), config.strategy.options)
    strategy = kind(options, np.random.default_rng(0))
    if isinstance(strategy, SearchStrategy):
        assert 0 < max(len(tree.candidates) for tree in grown.trees) <= about.leaves
    else:
        most = max(tree.num_leaves for tree in grown.trees)
        assert most < about.leaves if config.strategy.name in ENDS_EARLY else most == about.leaves
        assert options.planned_leaves == about.leaves
    assert (strategy.post_hoc_reason == "" and config.credit == "auto") is about.is_exact


def values(turn: ScriptedTurn) -> str:
    """Answers, and values what others answered in the words it is asked for."""
    if "Think it through" not in turn.context:
        return f"<answer>{turn.seed % 5}</answer>"
    score = turn.seed % 3
    return f"so\n{('sure', 'likely', 'impossible')[score]}" if "words" in turn.context else f"score is {score + 4}"


@pytest.mark.parametrize(
    ("name", "allowed"), [("tot", {20.0, 1.0, 0.001}), ("lats", {0.4, 0.5, 0.6})], ids=["tot", "lats"]
)
def test_a_search_of_thoughts_asks_the_model_itself_where_no_other_judge_is_named(name: str, allowed: set[float]):
    config = resolve(preset=name, overrides=["engine.name=scripted", "prompts=2", "seed=2"]).config
    for tree in rollout_sync(config=config, engine=Scripted(values)).trees:
        scores = [score.value for node in tree.subtree() for score in tree.scores(node) if score.judge == "process"]
        assert scores and set(scores) <= allowed
        assert tree.spent()["judge"].turns == len(scores)


@pytest.mark.parametrize(
    ("name", "setting"), [("offline", "strategy.options.commit=before"), ("arpo", "strategy.options.restart=none")]
)
def test_the_setting_that_is_said_to_make_credit_exact_does(name: str, setting: str):
    assert setting.partition("=")[0].rpartition(".")[2] in preset(name).notes
    result = rollout_sync(
        config=resolve(preset=name, overrides=["engine.name=scripted", "prompts=4", "seed=2", setting]).config
    )
    assert all(row.is_unbiased for row in result.rows())


def test_the_offline_plan_as_published_forks_at_the_root_only():
    config = resolve(preset="offline_as_published", overrides=["engine.name=scripted", "prompts=4"]).config
    for tree in rollout_sync(config=config).trees:
        assert len(tree.stems()) == 5
        assert all(len(tree.children(node)) <= 1 for node in tree.subtree()[1:])


@pytest.mark.parametrize("name", [name for name in preset_names() if name.startswith("rstar")])
def test_every_step_of_a_path_of_rstar_may_be_code(name: str):
    """A path has `max_depth` steps and one more, and rStar limits errors, never the calls."""
    config = resolve(preset=name, is_small=False).config
    assert config.growth.max_tool_calls == config.strategy.options["max_depth"] + 1


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="unknown preset 'arop'; did you mean 'arpo'"):
        preset("arop")


ABOUT = """\
[preset]
kind = "train"
summary = "Chains"
cites = "us"
leaves = 8
assumes = "nothing"
is_exact = true
"""


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ('kind = "train"\n', "", "[preset] has no kind; add what is missing"),
        ('summary = "Chains"\n', "", "[preset] has no summary; add what is missing"),
        ("[preset]", "[other]", "[preset] has no assumes, cites, is_exact, kind, leaves, summary; add what is missing"),
        ('"train"', '"trian"', "kind got 'trian'; allowed are 'train', 'sample', 'refine', 'steps', 'as_published'"),
        ('"train"', "3", "kind got 3: "),
        (
            '"Chains"',
            f'"{"x" * 61}"',
            f"summary = '{'x' * 61}' has 61 characters; write one line of 1 to 60 characters",
        ),
        ('"Chains"', '" "', "summary = ' ' has 1 characters; write one line of 1 to 60 characters"),
        ('"Chains"', '"a\\nb"', r"summary = 'a\nb' has 3 characters; write one line of 1 to 60 characters"),
        ("cites", "sites", "[preset] has no cites; add what is missing"),
        ("leaves = 8", "leaves = 8\nleafs = 8", "leafs unknown key; did you mean 'leaves'?"),
    ],
)
def test_a_preset_must_describe_itself(line: str, instead: str, message: str, tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(ABOUT)
    assert read_preset(path).name == "mine"
    path.write_text(ABOUT.replace(line, instead))
    with pytest.raises(ConfigError, match=re.escape(f"preset 'mine': {message}")):
        read_preset(path)


@pytest.mark.parametrize("name", preset_names())
def test_presets_as_published_are_those_named_so(name: str):
    assert (preset(name).kind == "as_published") is name.endswith("_as_published")


def test_the_presets_of_a_kind_that_answers_choose_an_answer():
    for each in map(preset, preset_names()):
        strategy = plugins.find("strategy", each.values["strategy"]["name"])
        if each.kind != "as_published":
            assert (each.kind != "train") is hasattr(strategy, "candidates"), each.name


@pytest.mark.parametrize(
    "name", ["mctsr", "mctsr_as_published", "mathblackbox", "refine_chain", "ab_mcts", "best_first"]
)
def test_refining_presets_speak_the_task_s_format_to_the_built_in_model_and_their_own_to_others(name: str) -> None:
    small, other = (resolve(preset=name, flags={"engine.name": engine}).config for engine in ("builtin", "scripted"))
    assert (small.format, small.task.name) == (None, "countdown")
    assert (other.format, other.task.name) == ("refine", "data")
    assert resolve(preset=name, is_small=False).config.format == "refine"


def test_the_format_called_task_is_the_task_s_own() -> None:
    assert resolve(flags={"format": "task"}).config.format is None
