"""The table of slime's names in docs/reference/slime-names.md has every name that our code reads or sets, and its
settings exist."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import pytest

from ramify.config.configure import resolve
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError
from ramify.integrations.slime.args import REFUSED, SlimeArgs
from ramify.servers.pool.config import PoolConfig
from ramify.service.arguments import arguments

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "slime-names.md"
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
NO_SETTING: Final = ("trainer", "-")


def rows() -> dict[str, tuple[str, str, str]]:
    """Name -> (default, setting, meaning) of the page's tables."""
    lines = PAGE.read_text("utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| `")]
    found = {name.strip("`"): (default, setting, means) for name, default, setting, means in cells}
    assert len(found) == len(cells)
    return found


def paths(setting: str) -> list[str]:
    return [] if setting in NO_SETTING else [path.strip("`") for path in setting.split()]


def kind_at(kind: Any, path: list[str]) -> Any:
    """The type of the setting at a dotted path. Raises `KeyError` where there is none."""
    for word in path:
        if is_dataclass(optional := next((part for part in get_args(kind) if part is not type(None)), kind)):
            kind = optional
        kind = get_type_hints(kind)[word] if is_dataclass(kind) else get_args(kind)[1]
    return kind


class Asked:
    """A trainer's arguments that say nothing, and note which names are read."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)


@pytest.mark.covers("S3.2")
def test_names_of_slime_are_in_the_table():
    assert rows().keys() >= {*SOURCE_DOCUMENT, *OTHERS}


@pytest.mark.covers("S3.2")
@pytest.mark.parametrize("path", sorted({path for _, setting, _ in rows().values() for path in paths(setting)}))
def test_every_setting_of_the_table_exists(path: str):
    match path.split("."):
        case ["service", "pool", name]:
            assert name in {field.name for field in fields(PoolConfig)}
        case words:
            assert kind_at(RunConfig, words) is not None


def test_a_name_without_a_setting_says_why():
    assert all(means for _, setting, means in rows().values() if setting in NO_SETTING)


def test_the_table_has_every_argument_that_is_read_inside_slime(monkeypatch: pytest.MonkeyPatch):
    asked = Asked()
    with pytest.raises(ConfigError, match="no TOML"):
        SlimeArgs.of(asked)
    monkeypatch.setenv("RAMIFY_CONFIG", "run.toml")
    SlimeArgs.of(asked)
    names = {name for name in asked.names if not name.startswith("ramify_")}
    assert names >= {name for name, _, _ in REFUSED}
    assert rows().keys() >= names


def test_the_table_has_every_argument_that_functions_are_given():
    given = vars(arguments(resolve(flags={"service.batch_size": 4}).config))
    assert rows().keys() >= given.keys() - {"config", "engine", "run"}
