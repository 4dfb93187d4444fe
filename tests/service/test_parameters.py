import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.servers.pool.config import PoolConfig
from ramify.service.parameters import GROUPS, PARAMETERS, settings_of

PAGE = Path(__file__).parents[2] / "docs" / "pool.md"
SOURCE_DOCUMENT = (
    "rollout_num_gpus_per_engine rollout_num_gpus rollout_function_path eval_function_path sglang_router_ip "
    "sglang_router_port rollout_num_gpus_per_node sglang_router_request_timeout_secs debug_train_only "
    "load_debug_rollout_data save_debug_rollout_data use_wandb wandb_run_id wandb_always_use_train_step "
    "rollout_batch_size n_samples_per_prompt global_batch_size reward_key"
).split()
"""The names of slime's walkthrough, its table and its code."""
OTHERS = (
    "num_gpus_per_node over_sampling_batch_size num_rollout rollout_seed rollout_shuffle prompt_data input_key "
    "label_key metadata_key apply_chat_template rollout_temperature rollout_top_p rollout_top_k "
    "rollout_max_response_len rollout_stop eval_prompt_data n_samples_per_eval_prompt eval_interval "
    "custom_rm_path dynamic_sampling_filter_path buffer_filter_path rollout_sample_filter_path "
    "custom_convert_samples_to_train_data_path custom_reward_post_process_path data_source_path "
    "partial_rollout mask_offpolicy_in_partial_rollout debug_rollout_only wandb_project wandb_group load save "
    "offload colocate custom_generate_function_path rollout_sample_hook_path rollout_all_samples_process_path"
).split()


def kind_at(kind: Any, path: list[str]) -> Any:
    """The type of the setting at a dotted path. Raises `KeyError` where there is none."""
    for word in path:
        if is_dataclass(optional := next((part for part in get_args(kind) if part is not type(None)), kind)):
            kind = optional
        kind = get_type_hints(kind)[word] if is_dataclass(kind) else get_args(kind)[1]
    return kind


@pytest.mark.covers("S3.2")
@pytest.mark.parametrize("name", [*SOURCE_DOCUMENT, *OTHERS])
def test_names_of_slime_are_known(name: str):
    assert PARAMETERS[name].name == name


@pytest.mark.parametrize("path", sorted({path for each in PARAMETERS.values() for path in each.settings}))
def test_every_setting_that_is_named_exists(path: str):
    match path.split("."):
        case ["service", "pool", name]:
            assert name in {field.name for field in fields(PoolConfig)}
        case words:
            assert kind_at(RunConfig, words) is not None


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_every_default_of_slime_is_taken(name: str):
    parameter = PARAMETERS[name]
    args = {"rollout_batch_size": 32, name: parameter.default}
    settings = settings_of(args)
    assert settings.keys() <= {"service.batch_size", *parameter.settings}
    assert bool(parameter.settings) == (parameter.status == "setting")
    assert parameter.means or parameter.status == "setting"


@pytest.mark.covers("S3.2")
def test_a_command_line_of_slime_becomes_settings():
    settings = settings_of(
        {
            "rollout-num-gpus": 16,
            "--rollout-num-gpus-per-engine": 2,
            "actor_num_nodes": 2,
            "rollout_batch_size": 64,
            "over_sampling_batch_size": 96,
            "n_samples_per_prompt": 8,
            "prompt_data": "dapo.jsonl",
            "input_key": "prompt",
            "label_key": "label",
            "apply_chat_template": True,
            "rollout_temperature": 0.8,
            "rollout_top_k": -1,
            "rollout_max_response_len": 8192,
            "rollout_shuffle": True,
            "partial_rollout": True,
            "mask_offpolicy_in_partial_rollout": True,
            "eval_prompt_data": ["aime", "aime.jsonl", "amc", "amc.jsonl"],
            "n_samples_per_eval_prompt": 16,
            "save": "checkpoints",
            "eval_interval": 20,
            "rollout_stop": None,
        }
    )
    assert settings == {
        "service.pool.num_gpus": 16,
        "service.pool.num_gpus_per_engine": 2,
        "service.pool.num_trainer_gpus": 16,
        "service.batch_size": 64,
        "service.over_sampling": 32,
        "strategy.options.n": 8,
        "service.rows_per_group": 8,
        "data.path": "dapo.jsonl",
        "data.question": "prompt",
        "data.answer": "label",
        "service.label_key": "answer",
        "format": "chat",
        "actions.policy.sampling.temperature": 0.8,
        "actions.policy.sampling.top_k": 0,
        "growth.max_response_tokens": 8192,
        "service.shuffle": True,
        "service.on_update": "keep",
        "service.on_stale": "mask",
        "service.eval.aime.data.path": "aime.jsonl",
        "service.eval.aime.data.question": "prompt",
        "service.eval.aime.data.answer": "label",
        "service.eval.aime.repeats": 16,
        "service.eval.amc.data.path": "amc.jsonl",
        "service.eval.amc.data.question": "prompt",
        "service.eval.amc.data.answer": "label",
        "service.eval.amc.repeats": 16,
    }


def test_settings_are_taken_by_a_run(tmp_path: Path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "1 + 1 = ?", "label": "2"}\n')
    settings = settings_of(
        {
            "prompt_data": str(questions),
            "input_key": "prompt",
            "label_key": "label",
            "rollout_batch_size": 4,
            "over_sampling_batch_size": 6,
            "n_samples_per_prompt": 2,
            "rollout_seed": 7,
            "rollout_top_p": 0.9,
            "debug_rollout_only": True,
            "eval_prompt_data": ["same", str(questions)],
            "n_samples_per_eval_prompt": 3,
        }
    )
    config = resolve(flags=settings).config
    assert config.service is not None
    assert (config.task.name, config.seed, config.strategy.options["n"]) == ("data", 7, 2)
    assert config.actions["policy"].sampling.top_p == 0.9
    assert (config.service.batch_size, config.service.over_sampling, config.service.debug) == (4, 2, "rollout_only")
    assert (config.service.eval["same"].repeats, config.service.eval["same"].data.question) == (3, "prompt")


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        ({"rollout_num_gpus_per_engine": 0.2}, {"num_gpus_per_engine": 1, "gpu_fraction": 0.2}),
        ({"rollout_num_gpus_per_engine": 4.0}, {"num_gpus_per_engine": 4}),
        ({"colocate": True}, {"colocate": True, "num_gpus": 8}),
        ({"colocate": True, "rollout_num_gpus": 4}, {"colocate": True, "num_gpus": 4}),
        ({"sglang_router_ip": "10.0.0.1", "sglang_router_port": 3000},
         {"router": "external", "router_ip": "10.0.0.1", "router_port": 3000}),
        ({"sglang_router_port": 3000}, {"router": "own", "router_port": 3000}),
        ({"num_gpus_per_node": 4, "rollout_num_gpus_per_node": 4}, {"num_gpus_per_node": 4}),
    ],
)  # fmt: skip
def test_settings_of_the_pool(args: dict[str, Any], settings: dict[str, Any]):
    assert settings_of(args) == {f"service.pool.{name}": value for name, value in settings.items()}


@pytest.mark.parametrize(
    ("args", "settings"),
    [
        ({"load_debug_rollout_data": "x-{rollout_id}.jsonl", "debug_train_only": True},
         {"service.load_debug": "x-{rollout_id}.jsonl", "service.debug": "train_only"}),
        ({"rollout_external_engine_addrs": ["10.0.0.1:8000", "https://b:1"]},
         {"engine.base_url": "http://10.0.0.1:8000,https://b:1"}),
        ({"apply_chat_template_kwargs": '{"enable_thinking": false}'},
         {"format_options.variables": {"enable_thinking": False}}),
        ({"metadata_key": "extra"}, {"data.public": ["extra"]}),
        ({"n_samples_per_eval_prompt": 4}, {}),
        ({"eval_prompt_data": ["a", "a.csv"], "eval_input_key": "q", "input_key": "prompt"},
         {"data.question": "prompt", "service.eval.a.data.path": "a.csv", "service.eval.a.data.question": "q"}),
        ({"use_wandb": True, "wandb_project": "trees", "wandb_always_use_train_step": True},
         {"service.trackers.wandb.kind": "wandb", "service.trackers.wandb.project": "trees",
          "service.always_train_step": True}),
    ],
)  # fmt: skip
def test_settings_that_are_not_one_to_one(args: dict[str, Any], settings: dict[str, Any]):
    assert settings_of(args) == settings


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"rollout_batchsize": 4}, "unknown parameter 'rollout_batchsize'; did you mean 'rollout_batch_size'"),
        ({"--rollout-batchsize": 4}, "did you mean 'rollout_batch_size'"),
        ({"sglang_mem_fraction_static": 0.8}, "go into engine.server.arguments"),
        ({"rollout_batch_size": 4, "rollout-batch-size": 4}, "rollout_batch_size is given twice"),
        ({"rollout_stop": ["</s>"]}, "rollout_stop = ['</s>'] is refused: the `format` says where a step ends"),
        ({"rm_type": "deepscaler"}, "name a `task` with its judge"),
        ({"data_source_path": "my.Source"}, "name a `task`"),
        ({"group_rm": True}, "is refused"),
        ({"wandb_key": "secret"}, "no key belongs into a configuration"),
        ({"over_sampling_batch_size": 8}, "needs rollout_batch_size beside it"),
        ({"over_sampling_batch_size": 8, "rollout_batch_size": 16}, "at least rollout_batch_size = 16"),
        ({"over_sampling_batch_size": "many", "rollout_batch_size": 16}, "over_sampling_batch_size = 'many' cannot be"),
        ({"rollout_num_gpus_per_engine": 1.5}, "whole cards, or a share of one below 1"),
        ({"rollout_num_gpus_per_engine": "two"}, "cannot be read"),
        ({"eval_prompt_data": ["aime"]}, "a name and a path for each"),
        ({"eval_prompt_data": ["a", "x", "a", "y"]}, "a name of its own"),
        ({"eval_prompt_data": ["a.b", "x"]}, "without a dot"),
        ({"apply_chat_template_kwargs": "{"}, "apply_chat_template_kwargs = '{' cannot be read"),
        ({"debug_train_only": True, "debug_rollout_only": True}, "say different things of service.debug"),
        ({"num_gpus_per_node": 4, "rollout_num_gpus_per_node": 8},
         "num_gpus_per_node and rollout_num_gpus_per_node say different things of service.pool.num_gpus_per_node: 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(args: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=re.escape(says)):
        settings_of(args)


def rows(of: str) -> dict[str, tuple[str, str, str]]:
    """Name -> (default, setting, meaning) of the table below a heading of the page."""
    text = PAGE.read_text("utf-8").partition(f"### {of}\n")[2].partition("\n#")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {name.strip("`"): (default, setting, means) for name, default, setting, means in cells}


@pytest.mark.parametrize("heading", GROUPS)
def test_the_page_has_the_table(heading: str):
    said = {
        each.name: (
            "none" if each.default is None else f"`{each.default}`",
            " ".join(f"`{path}`" for path in each.settings) or each.status,
            each.means,
        )
        for each in GROUPS[heading]
    }
    assert rows(heading) == said
