import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.config.configure import from_toml, resolve, to_toml
from ramify.config.presets import preset, preset_names
from ramify.config.run_config import GrowthConfig, RunConfig, StrategyConfig
from ramify.config.toml import toml_text
from ramify.core.action import ActionConfig
from ramify.core.errors import ConfigError
from ramify.core.limits import Limits
from ramify.core.segment import Sampling
from ramify.edge.patience import Patience
from ramify.edge.retries import RetryPolicy

STRATEGY = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    n: int = 2


class Mine:
    Config = Settings
"""


def written(folder: Path, content: str, name: str = "my.toml") -> Path:
    path = folder / name
    path.write_text(content, "utf-8")
    return path


def test_defaults_are_a_whole_run():
    config = resolve().config
    assert config.strategy.name == "chains"
    assert config.strategy.options == {"n": 8, "repeat": "none", "max_chains": 10_000}
    assert config.actions == {"policy": ActionConfig()}
    assert config.growth == GrowthConfig()


def test_later_layers_win_key_by_key(tmp_path: Path):
    written(tmp_path, "prompts = 1\nseed = 1\n[limits]\ndecode = 10\nleaves = 10\n", "ramify.toml")
    first = written(tmp_path, "seed = 2\n[limits]\ndecode = 20\n", "first.toml")
    second = written(tmp_path, "[limits]\ndecode = 30\n[strategy.options]\nbeam_size = 3\n", "second.toml")
    resolved = resolve(
        preset="offline",
        folder=tmp_path,
        files=[first, second],
        flags={"seed": 4, "max_trees": 5},
        flag_names={"seed": "--seed"},
        overrides=["max_trees=6", "limits.turns=7"],
    )
    config = resolved.config
    assert (config.prompts, config.seed, config.max_trees) == (1, 4, 6)
    assert config.limits == Limits(leaves=10, decode=30, turns=7)
    assert config.strategy.options["beam_size"] == 3
    assert config.strategy.options["initial_rollouts"] == 3
    assert resolved.sources["prompts"] == str(tmp_path / "ramify.toml")
    assert resolved.sources["seed"] == "--seed"
    assert resolved.sources["strategy.options.choose"] == "preset offline"


def test_a_file_may_name_the_preset_and_a_flag_wins_over_it(tmp_path: Path):
    path = written(tmp_path, 'preset = "arpo"\n')
    assert resolve(files=[path]).config.strategy.name == "online"
    config = resolve(files=[path], preset="chains").config
    assert (config.strategy.name, config.preset) == ("chains", "chains")


def test_naming_another_strategy_discards_the_options_of_the_one_before():
    config = resolve(preset="offline", flags={"strategy.name": "chains"}, overrides=["strategy.options.n=3"]).config
    assert config.strategy.options["n"] == 3
    assert "beam_size" not in config.strategy.options


def test_options_given_beside_another_strategy_are_its_own_in_any_order():
    texts = ["strategy.options.n=3", "strategy.name=chains"]
    settings = {"strategy.options": {"n": 3}, "strategy.name": "chains"}
    assert resolve(preset="offline", overrides=texts).config.strategy.options["n"] == 3
    assert resolve(preset="offline", flags=settings).config.strategy.options["n"] == 3


def test_another_kind_of_a_judge_discards_the_options_of_the_one_before(tmp_path: Path):
    path = written(tmp_path, '[judges.process]\nkind = "llm"\noptions = { mode = "vote" }\n')
    assert resolve(files=[path], overrides=["judges.process.kind=value"]).config.judges["process"].options == {}
    texts = ["judges.process.options.aggregate=last", "judges.process.options.base_url=http://h"]
    judge = resolve(files=[path], overrides=[*texts, "judges.process.kind=process"]).config.judges["process"]
    assert judge.options == {"aggregate": "last", "base_url": "http://h"}
    again = resolve(files=[path], overrides=["judges.process.kind=llm"]).config.judges["process"]
    assert again.options == {"mode": "vote"}


def test_a_judge_without_a_kind_is_of_the_kind_it_is_called(tmp_path: Path):
    path = written(tmp_path, '[judges.llm.options]\nmode = "vote"\n')
    assert resolve(files=[path], overrides=["judges.llm.kind=llm"]).config.judges["llm"].options == {"mode": "vote"}
    assert resolve(files=[path], overrides=["judges.llm.kind=value"]).config.judges["llm"].options == {}


def test_naming_the_same_strategy_again_keeps_its_options():
    config = resolve(preset="offline", flags={"strategy.name": "offline"}).config
    assert config.strategy.options["initial_rollouts"] == 3


def test_an_override_is_toml_or_text_or_none():
    overrides = [
        "actions.policy.sampling.temperature=0.5",
        "task.split=train",
        'data.public=["a", "b"]',
        "growth.max_turns=3",
        "growth.max_turns=none",
        "delivery = eager",
    ]
    config = resolve(overrides=overrides).config
    assert config.actions["policy"].sampling == Sampling(temperature=0.5)
    assert config.task.split == "train"
    assert config.data.public == ("a", "b")
    assert config.growth.max_turns is None
    assert config.delivery == "eager"


def test_an_evaluation_gives_up_no_path_where_training_throws_a_coin() -> None:
    thrown = GrowthConfig(prune="over_budget", prune_options={"tokens": 9}, keep=0.5)
    assert thrown.without_coin == GrowthConfig()
    assert GrowthConfig(prune="task").without_coin == GrowthConfig(prune="task")


def test_none_clears_an_optional_value_and_is_a_word_where_it_is_one(tmp_path: Path):
    path = written(tmp_path, '[growth]\nprune = "none"\nmax_turns = "none"\n')
    config = resolve(preset="arpo", files=[path], overrides=["strategy.options.restart=none"]).config
    assert config.growth.prune is None
    assert config.growth.max_turns is None
    assert config.strategy.options["restart"] == "none"


def test_a_data_file_chooses_the_data_task_unless_a_task_is_named(tmp_path: Path):
    path = written(tmp_path, '{"question": "q?"}', "data.jsonl")
    assert resolve(flags={"data.path": str(path)}).config.task.name == "data"
    assert resolve(flags={"data.path": str(path), "task.name": "countdown"}).config.task.name == "countdown"


def test_the_retry_policy_is_a_setting_of_each_engine(tmp_path: Path):
    path = written(tmp_path, '[engines.critic]\nname = "scripted"\n[engines.critic.retry.patience]\nstart_s = 5\n')
    config = resolve(files=[path], overrides=["engine.retry.max_down_s=60", "engine.retry.max_tries=2"]).config
    assert config.engine.retry == RetryPolicy(max_down_s=60.0, max_tries=2)
    assert config.engines["critic"].retry == RetryPolicy(patience=Patience(start_s=5.0))
    assert from_toml(to_toml(config)) == config
    assert resolve().config.engine.retry == RetryPolicy()


def test_another_action_leaves_the_policy_action_in_place():
    config = resolve(overrides=["actions.critique.role=critique"]).config
    assert set(config.actions) == {"policy", "critique"}


BAD = {
    "unknown key": ({"overrides": ["growth.max_tool_cals=3"]}, ["growth.max_tool_cals: unknown key; did you mean"]),
    "unknown section": ({"overrides": ["limit.decode=3"]}, ["limit: unknown key; did you mean 'limits'"]),
    "unknown preset": ({"preset": "ofline"}, ["unknown preset 'ofline'; did you mean 'offline'?"]),
    "unknown strategy": (
        {"flags": {"strategy.name": "chain"}},
        ["strategy.name: unknown strategy 'chain'; did you mean 'chains'?", "path/to/file.py:Name"],
    ),
    "unknown strategy option": (
        {"overrides": ["strategy.options.nn=3"]},
        ["--set strategy.options.nn=3: strategy.options.nn: unknown key; did you mean 'n'?"],
    ),
    "impossible strategy option": (
        {"overrides": ["strategy.options.n=0"]},
        ["--set strategy.options.n=0: strategy.options: chains: ", "1 <= n <= max_chains"],
    ),
    "strategy option of another type": (
        {"overrides": ["strategy.options.n=two"]},
        ["strategy.options.n: got 'two': Expected `int`, got `str`"],
    ),
    "strategy option of another word": (
        {"overrides": ["strategy.options.repeat=always"]},
        ["strategy.options.repeat: got 'always'; allowed are 'none', 'closed', 'budget'"],
    ),
    "unknown rule to choose by": (
        {"preset": "offline", "overrides": ["strategy.options.choose=unifrm"]},
        ["strategy.options.choose: unknown choose 'unifrm'; did you mean 'uniform'"],
    ),
    "unknown task": ({"flags": {"task.name": "countdwn"}}, ["task.name: unknown task 'countdwn'; did you mean"]),
    "unknown task option": ({"overrides": ["task.options.leve=1"]}, ["task.options.leve: unknown key 'leve'"]),
    "unknown engine": ({"flags": {"engine.name": "vlm"}}, ["engine.name: unknown engine 'vlm'; did you mean 'vllm'?"]),
    "unknown engine option": ({"overrides": ["engine.options.x=1"]}, ["engine.options.x: unknown key 'x'"]),
    "an option of the engine that the retry policy sets": (
        {"overrides": ["engine.name=openai", "engine.options.patience.start_s=3"]},
        ["engine.options.patience: it is set by engine.retry.patience"],
    ),
    "unknown retry setting": (
        {"overrides": ["engine.retry.max_try=3"]},
        ["--set engine.retry.max_try=3: engine.retry.max_try: unknown key; did you mean 'max_tries'"],
    ),
    "an impossible retry policy": (
        {"overrides": ["engine.retry.max_tries=0"]},
        ["engine.retry: impossible retry policy", "at least 1 try"],
    ),
    "a wait without end": ({"overrides": ["engine.retry.max_down_s=inf"]}, ["every value finite"]),
    "impossible patience": (
        {"overrides": ["engine.retry.patience.start_s=0"]},
        ["engine.retry.patience: impossible patience"],
    ),
    "unknown format": ({"overrides": ["format=arp"]}, ["format: unknown format 'arp'; did you mean 'arpo'?"]),
    "unknown credit": ({"overrides": ["credit=leaf_grop"]}, ["credit: unknown credit 'leaf_grop'; did you mean"]),
    "unknown prune rule": ({"overrides": ["growth.prune=dead"]}, ["growth.prune: unknown prune 'dead'"]),
    "a prune rule without its keyword": (
        {"overrides": ["growth.prune=over_budget"]},
        ["growth.prune_options.tokens: the rule 'over_budget' needs it"],
    ),
    "a prune rule without the judge it reads": (
        {"overrides": ["growth.prune=judged_below"]},
        ["growth.prune_judge: the rule 'judged_below' reads its value"],
    ),
    "a judge that a prune rule does not read": (
        {"overrides": ["growth.prune=repeated_call", "growth.prune_judge=process"]},
        ["growth.prune_judge: the rule 'repeated_call' reads no value of a judge"],
    ),
    "a judge that the task's prune rule does not read": (
        {"overrides": ["growth.prune=task", "growth.prune_judge=process"]},
        ["growth.prune_judge: the rule reads no value of a judge"],
    ),
    "the value of a prune rule": (
        {"overrides": ["growth.prune=judged_below", "growth.prune_judge=process", "growth.prune_options.value=1"]},
        ["growth.prune_options.value: it is what growth.prune_judge gives"],
    ),
    "an unknown keyword of a prune rule": (
        {"overrides": ["growth.prune=over_budget", "growth.prune_options.token=3"]},
        ["growth.prune_options.token: unknown key 'token'; did you mean 'tokens'?"],
    ),
    "keywords of the task's own rule": (
        {"overrides": ["growth.prune=task", "growth.prune_options.tokens=3"]},
        ["growth.prune_options: they are of a rule that growth.prune names"],
    ),
    "unknown sample rule": ({"overrides": ["rows.sample=all"]}, ["rows.sample: unknown sample 'all'"]),
    "a word that is not allowed": (
        {"overrides": ["rows.policy=twice"]},
        ["rows.policy: got 'twice'; allowed are 'once', 'fraction', 'per_leaf'"],
    ),
    "text for a number": ({"overrides": ["prompts=many"]}, ["prompts: got 'many': Expected `int`, got `str`"]),
    "a yes for a number": ({"overrides": ["prompts=true"]}, ["prompts: got True: Expected `int`, got `bool`"]),
    "a fraction for a whole number": ({"overrides": ["prompts=1.5"]}, ["prompts: got 1.5: Expected `int`"]),
    "no prompts": ({"flags": {"prompts": 0}}, ["prompts = 0: it must be above 0"]),
    "no trees": ({"flags": {"max_trees": 0}}, ["max_trees = 0: it must be above 0"]),
    "no tokens": ({"overrides": ["growth.max_response_tokens=0"]}, ["growth.max_response_tokens = 0: it must be"]),
    "negative calls": ({"overrides": ["growth.max_tool_calls=-1"]}, ["growth.max_tool_calls = -1: 0 or more"]),
    "no deadline": ({"overrides": ["tools.deadline_s=0"]}, ["tools.deadline_s = 0.0: it must be above 0"]),
    "negative retries": ({"overrides": ["tools.max_retries=-1"]}, ["tools.max_retries = -1: 0 or more"]),
    "a negative limit": ({"overrides": ["limits.decode=-5"]}, ["limit decode = -5: a limit is positive"]),
    "a share above one": ({"overrides": ["max_failed_share=2"]}, ["max_failed_share = 2.0: it is a share"]),
    "impossible sampling": (
        {"overrides": ["actions.policy.sampling.top_p=0.0"]},
        ["actions.policy.sampling: impossible sampling"],
    ),
    "quoting without a template": (
        {"overrides": ["actions.critique.edge=quotes"]},
        ["actions.critique: an action that quotes needs a template"],
    ),
    "a value where a table is": ({"overrides": ["limits=3"]}, ["limits: got 3, but it is a table of keys"]),
    "a table where a value is": ({"overrides": ["prompts.n=3"]}, ["prompts: got {'n': 3}: Expected `int`"]),
    "no override": ({"overrides": ["prompts"]}, ["--set prompts: an override reads like"]),
    "an override of nothing": ({"overrides": [".x=1"]}, ["--set .x=1: an override reads like"]),
    "an empty name": ({"flags": {"strategy.name": " "}}, ["strategy.name = ' ': a name or path"]),
    "a file that is not there": ({"files": [Path("none.toml")]}, ["none.toml: cannot be read: No such file"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_configuration_is_refused_with_what_was_wrong(case: str):
    arguments, messages = BAD[case]
    with pytest.raises(ConfigError) as caught:
        resolve(**arguments)
    for message in messages:
        assert message in str(caught.value)


def test_all_faults_of_all_layers_are_named_at_once_with_their_source(tmp_path: Path):
    path = written(tmp_path, "prompt = 3\n[growth]\nmax_turns = 0.5\n")
    broken = written(tmp_path, "prompts = \n", "broken.toml")
    with pytest.raises(ConfigError) as caught:
        resolve(files=[path, broken], flags={"seed": "x"}, flag_names={"seed": "--seed"}, overrides=["rows.leaves=x"])
    lines = str(caught.value).splitlines()
    assert lines[0] == "5 faults:"
    assert lines[1].startswith(f"  {broken}: this is no TOML: Invalid value (at line 1, column 11)")
    assert lines[2] == f"  {path}: prompt: unknown key; did you mean 'prompts'?"
    assert lines[3].startswith(f"  {path}: growth.max_turns: got 0.5")
    assert lines[4] == "  --seed: seed: got 'x': Expected `int`, got `str`"
    assert lines[5].startswith("  --set rows.leaves=x: rows.leaves: got 'x'")


def test_a_file_in_another_encoding_is_refused(tmp_path: Path):
    path = tmp_path / "my.toml"
    path.write_bytes(b'preset = "\xff"')
    with pytest.raises(ConfigError, match="this is no TOML"):
        resolve(files=[path])


def test_a_byte_order_mark_is_no_fault(tmp_path: Path):
    assert resolve(files=[written(tmp_path, "\ufeffprompts = 3\n")]).config.prompts == 3


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_resolves_and_says_what_it_cites(name: str):
    about = preset(name)
    config = resolve(preset=name).config
    assert config.preset == name
    assert about.summary
    assert about.cites
    assert about.leaves > 0
    assert set(about.values["strategy"]["options"]) <= set(config.strategy.options)


@pytest.mark.parametrize("name", [None, *preset_names()])
def test_the_written_configuration_is_read_back_unchanged(name: str | None):
    config = resolve(
        preset=name,
        overrides=[
            "limits.seconds=1.5",
            'actions.critique.template="Look at {policy}\\n\\u007f\\" again"',
            "actions.critique.edge=quotes",
            "growth.max_turns=3",
            'data.public=["a b", "ü"]',
        ],
    ).config
    text = to_toml(config)
    again = from_toml(text)
    assert to_toml(again) == text
    assert again.actions == config.actions
    assert again.limits == config.limits
    assert again.data == config.data
    assert again.strategy == config.strategy


def test_a_written_configuration_takes_nothing_from_its_preset(tmp_path: Path):
    text = to_toml(resolve(preset="chains").config).replace("n = 8", "")
    assert from_toml(text).strategy.options["n"] == 8
    with pytest.raises(ConfigError, match=r"config.toml: strategy.options.nn: unknown key"):
        from_toml(text.replace("max_chains", "nn"))


def test_a_strategy_of_a_file_means_the_same_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path, STRATEGY, "mine.py")
    monkeypatch.chdir(tmp_path)
    config = resolve(flags={"strategy.name": "mine.py:Mine"}, overrides=["strategy.options.n=5"]).config
    assert config.strategy == StrategyConfig(name=f"{tmp_path / 'mine.py'}:Mine", options={"n": 5})
    monkeypatch.chdir("/")
    assert from_toml(to_toml(config)) == config


def test_a_rule_of_a_file_can_choose_nodes(tmp_path: Path):
    path = written(tmp_path, "def last(tree, candidates, k, rng):\n    return candidates[-k:]\n", "rule.py")
    config = resolve(preset="offline", overrides=[f"strategy.options.choose={path}:last"]).config
    assert config.strategy.options["choose"] == f"{path}:last"


def test_config_values_that_cannot_be_are_refused_when_built():
    with pytest.raises(ConfigError, match="there must be one called 'policy'"):
        RunConfig(actions={})


texts = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(texts, values, max_size=4))
def test_whatever_toml_can_hold_is_read_back(data: dict[str, object]):
    assert tomllib.loads(toml_text(data)) == data
