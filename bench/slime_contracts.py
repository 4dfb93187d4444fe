"""Held against slime's own code: its contract tests on our dotted paths, and its functions on what they return.

    pip install 'torch==2.13.0' httpx aiohttp numba pylatexenc pillow tqdm pytest pyyaml
    python bench/slime_contracts.py CHECKOUT        # of github.com/THUDM/slime

Prints a line a proof and exits 1 if one fails. Nothing is trained and no GPU is asked: ray, sglang and Megatron are
empty modules here, as in slime's own tests on CPU.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import types
from argparse import Namespace
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar

HERE = Path(__file__).resolve()
OURS = "ramify.integrations.slime"
HOOKS = {
    "rollout": {"ROLLOUT_FUNCTION": "generate_rollout"},
    "generate": {},
    "path_loading": {"EVAL_FUNCTION": "generate_rollout"},
    "runtime_hook": {
        "CUSTOM_REWARD_POST_PROCESS": "post_process_rewards",
        "CUSTOM_CONVERT_SAMPLES_TO_TRAIN_DATA": "convert_samples_to_train_data",
    },
}
"""Contract test -> hooks that are ours in it; a tree is no function of one sample, so `generate` has none."""
TREES = """
[task]
name = "countdown"
[engine]
name = "scripted"
[strategy]
name = "offline"
[strategy.options]
initial_rollouts = 3
beam_size = 2
expansion_iterations = 2
[judges.countdown]
kind = "slime_contracts:length"
"""
STUBS = (
    "ray", "sglang", "sglang_router", "megatron", "wandb", "tensorboard", "pybase64", "omegaconf", "transformers",
    "torch_memory_saver",
)  # fmt: skip
RANKS = {"rank": 0, "size": 1}
"""Context parallelism of the empty Megatron."""


def length(text: str, problem: object) -> float:
    """A judge: a reward that differs from leaf to leaf."""
    return len(text) % 7 / 6


async def reward(args: Any, sample: Any) -> dict[str, Any]:
    """A reward function of slime's kind, with parts."""
    return {"score": len(sample.response) % 5 / 4, "length": len(sample.response), "label": sample.label}


def by_spread(args: Any, samples: list[Any], **_: Any) -> bool:
    """A dynamic filter of slime's kind."""
    return len({sample.get_reward_value(args) for sample in samples}) > 1


# -- slime's own tests -------------------------------------------------------------------------------------------------


def contract_tests(checkout: Path, folder: Path) -> bool:
    (folder / "run.toml").write_text(TREES, "utf-8")
    path = os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parent), str(checkout)])
    is_good = True
    for name, hooks in HOOKS.items():
        ours = {f"SLIME_CONTRACT_{hook}_PATH": f"{OURS}.{function}" for hook, function in hooks.items()}
        known = {**os.environ, **ours, "RAMIFY_CONFIG": str(folder / "run.toml"), "PYTHONPATH": path}
        file = f"tests/plugin_contracts/test_plugin_{name}_contracts.py"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
        done = subprocess.run(command, cwd=checkout, env=known, capture_output=True, text=True, check=False)
        counts = done.stdout.strip().rpartition("\n")[2].strip("= ")
        told = counts if done.returncode == 0 else done.stdout + done.stderr
        say(f"{file} with {', '.join(ours.values()) or 'nothing of ours'}", done.returncode == 0, told)
        is_good &= done.returncode == 0
    return is_good


# -- slime's functions on our samples ----------------------------------------------------------------------------------


class Empty(types.ModuleType):
    """A module that has everything, and all of it does nothing."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *a, **k: None, "options": staticmethod(lambda **k: None)})


class Stubs(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        is_stub = name.split(".", maxsplit=1)[0] in STUBS or name.startswith("slime.backends.sglang_utils.")
        return ModuleSpec(name, self, is_package=True) if is_stub else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = Empty(spec.name)
        if spec.name == "ray":
            module.remote = lambda thing: thing
        if spec.name == "megatron.core":
            module.mpu = ranks()
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def ranks() -> types.SimpleNamespace:
    """Megatron's knowledge of ranks: one of everything, but for context parallelism."""
    return types.SimpleNamespace(
        is_pipeline_last_stage=lambda *_, **__: True,
        get_context_parallel_rank=lambda: RANKS["rank"],
        get_context_parallel_world_size=lambda: RANKS["size"],
    )


class Source:
    """Prompts in slime's samples, through slime's own buffer."""

    def __new__(cls, args: Namespace) -> Any:
        from slime.rollout.data_source import RolloutDataSourceWithBuffer
        from slime.utils.types import Sample

        source = RolloutDataSourceWithBuffer(args)
        prompts = [Sample(prompt=f"make {n + 2} from 1 2", label="3", metadata={"level": n}) for n in range(50)]
        source.dataset = Prompts(prompts)
        return source


class Prompts:
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)


def arguments(folder: Path, **given: Any) -> Namespace:
    usual = {
        "ramify_config": str(folder / "run.toml"), "rollout_global_dataset": True, "prompt_data": None,
        "buffer_filter_path": None, "rollout_shuffle": False, "n_samples_per_prompt": 4, "rollout_batch_size": 3,
        "over_sampling_batch_size": 3, "reward_key": None, "custom_rm_path": None, "rm_type": None, "group_rm": False,
        "advantage_estimator": "grpo", "rewards_normalization": True, "grpo_std_normalization": True,
        "rollout_top_p": 1.0, "global_batch_size": 12, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 600,
        "balance_data": False, "balance_by_flops": False, "kl_coef": 0, "use_rollout_logprobs": True, "use_opd": False,
        "normalize_advantages": False, "custom_advantage_function_path": f"{OURS}.advantages",
        "log_reward_category": None, "eval_datasets": None, "rollout_num_gpus": 1,
    }  # fmt: skip
    return Namespace(**{**usual, **given})


def proofs(checkout: Path, folder: Path) -> bool:
    sys.meta_path.insert(0, Stubs())
    sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE.parent), str(checkout)]
    (folder / "run.toml").write_text(TREES, "utf-8")
    import slime.ray.rollout  # noqa: F401 - as in the process that calls rollout functions

    every = [
        samples_of_slime, metrics_reach_the_log, default_converter, own_converter, schedule, whole_way,
        context_parallel, gradient, tree_as_one_rollout, own_rewards, own_filter, evaluation, groups_go_back,
        debug_file,
    ]  # fmt: skip
    results = [proved(proof, folder) for proof in every]
    return all(results)


def proved(proof: Callable[[Path], object], folder: Path) -> bool:
    try:
        told = proof(folder)
    except Exception as error:  # noqa: BLE001 - the next proof is tried all the same
        say(f"{proof.__name__}: {proof.__doc__}", False, f"{type(error).__name__}: {error}")
        return False
    say(f"{proof.__name__}: {proof.__doc__}", True, told)
    return True


def made(folder: Path, **given: Any) -> tuple[Namespace, Any, list[Any]]:
    """Arguments, the rollout's output as slime gets it, and its samples as slime flattens them."""
    from slime.observability.rollout_data_utils import validate_rollout_id_annotated
    from slime.rollout.base_types import RolloutFnTrainOutput, call_rollout_fn

    from ramify.integrations.slime import generate_rollout

    args = arguments(folder, **given)
    output = call_rollout_fn(generate_rollout, args, 0, Source(args), evaluation=False)
    assert isinstance(output, RolloutFnTrainOutput) and output.metrics
    validate_rollout_id_annotated(output.samples)
    return args, output, [sample for group in output.samples for sample in group]


def samples_of_slime(folder: Path) -> str:
    """slime's samples are filled, go to dictionaries and back, and pass its checks of lengths and rollout ids"""
    from slime.utils.types import Sample

    _, output, batch = made(folder)
    for sample in batch:
        assert type(sample) is Sample and isinstance(sample.status, Sample.Status)
        sample._validate_response_metadata_lengths()
        assert Sample.from_dict(sample.to_dict()).to_dict() == sample.to_dict()
    return f"{len(output.samples)} groups, {len(batch)} samples"


def metrics_reach_the_log(folder: Path) -> str:
    """slime's own metrics of a batch are computed beside ours"""
    from slime.observability.rollout_metrics import compute_metrics_from_samples

    args, output, batch = made(folder)
    own = compute_metrics_from_samples(args, batch)
    assert own["response_len/mean"] > 0
    return f"{len(own)} of slime's, {len(output.metrics)} of ours"


def slimes_data(args: Namespace, batch: list[Any]) -> dict[str, Any]:
    from slime.ray.rollout import RolloutManager

    manager = types.SimpleNamespace(
        args=args, custom_reward_post_process_func=None, custom_convert_samples_to_train_data_func=None
    )
    manager._post_process_rewards = lambda samples: RolloutManager._post_process_rewards(manager, samples)
    return RolloutManager._convert_samples_to_train_data(manager, batch)


def default_converter(folder: Path) -> str:
    """slime's converter reads our samples, and ours says the same but for the rewards"""
    from ramify.integrations.slime import convert_samples_to_train_data, post_process_rewards

    args, _, batch = made(folder, ramify_mean="rollouts")
    theirs, ours = slimes_data(args, batch), convert_samples_to_train_data(args, batch)
    same = [key for key in theirs if key not in ("rewards", "metadata")]
    assert {key: theirs[key] for key in same} == {key: ours[key] for key in same}
    assert set(theirs) - set(ours) == {"metadata"} and not set(ours) - set(theirs)
    raw, rewards = post_process_rewards(args, batch)
    assert raw == theirs["raw_reward"]
    assert max(abs(a - b) for a, b in zip(rewards, theirs["rewards"], strict=True)) < 1e-5
    for sample in batch:
        sample.train_metadata = None
    plain = convert_samples_to_train_data(args, batch)
    assert max(abs(a - b) for a, b in zip(plain["rewards"], theirs["rewards"], strict=True)) < 1e-5
    return f"{len(same)} keys are equal; GRPO's rewards too, within 1e-5 (float32)"


def own_converter(folder: Path) -> str:
    """per-token advantages stand in `rewards`, R numbers a row, and one number a row in `raw_reward`"""
    from ramify.integrations.slime import convert_samples_to_train_data

    args, _, batch = made(folder)
    data = convert_samples_to_train_data(args, batch)
    assert [len(row) for row in data["rewards"]] == data["response_lengths"]
    assert data["raw_reward"] == [sample.reward for sample in batch]
    assert len(set(data["rollout_mask_sums"])) == 1
    return f"{sum(map(len, data['rewards']))} numbers"


def shards(args: Namespace, data: dict[str, Any], num_ranks: int) -> list[dict[str, Any]]:
    """What each rank of the trainer gets, by slime's own splitter."""
    import slime.ray.rollout as module

    got: list[dict[str, Any]] = []
    parallel = {"dp_size": num_ranks, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    module.ray.put = got.append
    manager = types.SimpleNamespace(args=args, train_parallel_config=parallel)
    module.RolloutManager._split_train_data_by_dp(manager, data)
    for shard in got:
        for whole, own in (("total_lengths", "total_lengths"), ("raw_reward", "local_raw_reward")):
            shard[own] = [shard[whole][i] for i in shard["partition"]]
    return got


def schedule(folder: Path) -> str:
    """slime's schedule places every sample once, and its splitter hands the advantages on"""
    from ramify.integrations.slime import convert_samples_to_train_data

    args, _, batch = made(folder)
    data = convert_samples_to_train_data(args, batch)
    parts = shards(args, data, num_ranks=2)
    assert sorted(i for part in parts for i in part["partition"]) == list(range(len(batch)))
    for part in parts:
        assert part["rewards"] == [data["rewards"][i] for i in part["partition"]]
    return f"{[len(part['partition']) for part in parts]} samples on two ranks"


def trained(args: Namespace, shard: dict[str, Any]) -> dict[str, Any]:
    """A rank's data behind slime's own computation of advantages."""
    from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp
    from slime.backends.megatron_utils.loss import compute_advantages_and_returns

    lengths = zip(shard["rollout_log_probs"], shard["total_lengths"], shard["response_lengths"], strict=True)
    data = {**shard, "rollout_log_probs": [slice_log_prob_with_cp(*each) for each in lengths]}
    compute_advantages_and_returns(args, data)
    return data


def whole_way(folder: Path) -> str:
    """slime's `compute_advantages_and_returns` has the tree's credit token by token, and its log can sum `rewards`"""
    from ramify.integrations.slime import convert_samples_to_train_data

    args, _, batch = made(folder)
    (shard,) = shards(args, convert_samples_to_train_data(args, batch), num_ranks=1)
    wanted = [batch[i].train_metadata["advantages"] for i in shard["partition"]]
    data = trained(args, shard)
    for got, values in zip(data["advantages"], wanted, strict=True):
        assert max(abs(a - b) for a, b in zip(got.tolist(), values, strict=True)) < 1e-6
    assert abs(sum(data["rewards"]) - sum(sample.reward for sample in batch)) < 1e-6
    return f"{sum(map(len, data['advantages']))} tokens"


def context_parallel(folder: Path) -> str:
    """under context parallelism each rank has the advantages of its own tokens, and together all of them"""
    from ramify.integrations.slime import convert_samples_to_train_data

    args, _, batch = made(folder)
    (shard,) = shards(args, convert_samples_to_train_data(args, batch), num_ranks=1)
    wanted = sum(len(row) for row in shard["rewards"]), sum(sum(row) for row in shard["rewards"])
    found = [0, 0.0]
    for rank in range(2):
        RANKS.update(rank=rank, size=2)
        try:
            for values in trained(args, dict(shard))["advantages"]:
                found = [found[0] + len(values), found[1] + float(values.double().sum())]
        finally:
            RANKS.update(rank=0, size=1)
    assert found[0] == wanted[0] and abs(found[1] - wanted[1]) < 1e-3
    return f"{found[0]} tokens on two ranks"


def gradient(folder: Path) -> str:
    """the gradient of slime's loss is the tree's credit: one factor for all tokens of all trees"""
    import torch
    from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean

    from ramify.integrations.slime import convert_samples_to_train_data

    args, _, batch = made(folder)
    found = {}
    for mean in ("tokens", "rollouts"):
        args.ramify_mean = mean
        (shard,) = shards(args, convert_samples_to_train_data(args, batch), num_ranks=1)
        data = trained(args, shard)
        logprobs = torch.zeros(sum(shard["response_lengths"]), requires_grad=True)
        reduce = get_sum_of_sample_mean(
            shard["total_lengths"], shard["response_lengths"], shard["loss_masks"], shard["rollout_mask_sums"]
        )
        (reduce(-torch.exp(logprobs) * torch.cat(data["advantages"])) / args.global_batch_size).backward()
        credit = torch.cat([torch.tensor(batch[i].train_metadata["advantages"]) for i in shard["partition"]])
        counts = credit.abs() > 1e-9
        factors = (logprobs.grad[counts] / credit[counts]).double()
        found[mean] = float(factors.min() / factors.max())
    assert 0.9999 < found["tokens"] < 1.0001
    return f"largest factor over smallest: {found['tokens']:.5f}; with ramify_mean = rollouts {found['rollouts']:.1f}"


def tree_as_one_rollout(folder: Path) -> str:
    """all leaves of a tree are one rollout of slime's, and a step of one a tree is scheduled"""
    from ramify.integrations.slime import convert_samples_to_train_data

    args, output, batch = made(folder, ramify_rollouts="tree", global_batch_size=3)
    data = convert_samples_to_train_data(args, batch)
    assert len(set(data["rollout_ids"])) == len(output.samples)
    assert sum(len(part["partition"]) for part in shards(args, data, num_ranks=2)) == len(batch)
    return f"{len(set(data['rollout_ids']))} rollouts of {len(batch)} samples"


def own_rewards(folder: Path) -> str:
    """`--custom-rm-path` and `--rm-type` reward leaves before their trees are credited, parts and all"""
    args, _, batch = made(folder, custom_rm_path="slime_contracts.reward", reward_key="score")
    assert all(sample.get_reward_value(args) == len(sample.response) % 5 / 4 for sample in batch)
    assert all(sample.reward["label"] == "3" for sample in batch)
    _, _, random = made(folder, rm_type="random")
    assert {sample.reward for sample in random} <= {0, 1}
    return "by slime's `async_rm`"


def own_filter(folder: Path) -> str:
    """`--dynamic-sampling-filter-path`: slime's own filters run on our groups, and what they drop is counted"""
    path = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    _, output, batch = made(folder, dynamic_sampling_filter_path=path, custom_rm_path="slime_contracts.coarse")
    for group in output.samples:
        assert len({sample.reward for sample in group}) > 1
    dropped = {name: value for name, value in output.metrics.items() if "drop_" in name}
    assert dropped and len(batch) == 12
    return dropped


async def coarse(args: Any, sample: Any) -> float:
    """Equal for all of every other prompt."""
    return float(sample.group_index % 2 and len(sample.response) % 2)


def evaluation(folder: Path) -> str:
    """evaluation sets are read by slime's own `Dataset` and logged by its own metrics"""
    from slime.observability.rollout_metrics import compute_metrics_from_samples
    from slime.rollout.base_types import RolloutFnEvalOutput, call_rollout_fn
    from slime.utils.eval_config import build_eval_dataset_configs

    from ramify.integrations.slime import generate_rollout

    lines = [f'{{"text": "make {n + 2} from 1 2", "answer": "3", "metadata": {{"level": {n}}}}}' for n in range(5)]
    (folder / "eval.jsonl").write_text("\n".join(lines), "utf-8")
    args = arguments(folder, eval_reward_key=None, metadata_key="metadata", input_key="text", label_key="answer")
    said = [{"name": "sums", "path": f"{folder}/eval.jsonl@[1:4]", "n_samples_per_eval_prompt": 2, "temperature": 0.5}]
    args.eval_datasets = build_eval_dataset_configs(args, said, {})
    output = call_rollout_fn(generate_rollout, args, 0, Source(args), evaluation=True)
    assert isinstance(output, RolloutFnEvalOutput)
    found = output.data["sums"]
    assert len(found["rewards"]) == len(found["truncated"]) == len(found["samples"]) == 6
    assert [sample.index for sample in found["samples"]] == list(range(6))
    compute_metrics_from_samples(args, found["samples"])
    return f"mean reward {sum(found['rewards']) / 6:.2f} of three questions, two answers each"


def groups_go_back(folder: Path) -> str:
    """surplus groups go back to slime's buffer whole, and are drawn first"""
    from ramify.integrations.slime import generate_rollout

    args = arguments(folder, over_sampling_batch_size=5)
    source = Source(args)
    output = generate_rollout(args, 0, source)
    assert len(output.samples) == 3 and source.get_buffer_length() == 2
    waiting = {sample.group_index for group in source.buffer for sample in group}
    again = generate_rollout(args, 1, source)
    drawn = {group[0].group_index for group in [*again.samples, *source.buffer]}
    assert waiting <= drawn
    return f"groups {sorted(waiting)}"


def debug_file(folder: Path) -> str:
    """`--save-debug-rollout-data` writes our samples, which slime and a service both load and save"""
    from slime.observability.rollout_data_utils import load_debug_rollout_data, save_debug_rollout_data

    from ramify.service import debug_files

    _, _, batch = made(folder)
    template = str(folder / "debug_{rollout_id}.pt")
    save_debug_rollout_data(template, batch, rollout_id=7, evaluation=False)
    again = load_debug_rollout_data(template, rollout_id=7)
    assert [sample.to_dict() for sample in again] == [sample.to_dict() for sample in batch]
    ours = debug_files.load(debug_files.path_of(template, 7))
    debug_files.save(ours, debug_files.path_of(template, 8), rollout_id=8)
    back = load_debug_rollout_data(template, rollout_id=8)
    assert [sample.to_dict() for sample in back] == [sample.to_dict() for sample in batch]
    return f"{len(again)} samples"


def say(what: str, is_good: bool, told: object) -> None:
    print(f"{'pass' if is_good else 'FAIL'}  {what}  -> {told}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=os.environ.get("RAMIFY_SLIME"))
    parser.add_argument("--smoke", action="store_true", help="changes nothing: it takes seconds")
    checkout = parser.parse_args().checkout
    if checkout is None:
        print("skipped: name a checkout of slime, or set RAMIFY_SLIME to one")
        return 0
    checkout = checkout.resolve()
    with tempfile.TemporaryDirectory() as folder:
        is_good = contract_tests(checkout, Path(folder))
        is_good &= proofs(checkout, Path(folder))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.modules["slime_contracts"] = sys.modules["__main__"]
    sys.exit(main())
