# pyright: reportMissingImports=false
"""verl's loss on trees of the built-in model, on a CPU: a policy learns by verl's own batch, estimator and loss.

    python examples/train_verl.py MODEL [UPDATES] [TREES]

MODEL is a policy's folder; `python -m models.weaken --out MODEL` writes one that has room to learn, in a checkout.
verl's trainer needs GPUs: its workers, servers and checkpoints are not here. Here is what trains a token: its
`DataProto`, the advantage estimator `ramify` and the policy loss `ramify`. Needs `pip install verl torch transformers`.
"""

import argparse
import os
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ["VERL_USE_EXTERNAL_MODULES"] = "ramify.integrations.verl"  # verl imports it, and it registers itself

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.config import ActorConfig

import ramify
from ramify.rows import verl as rows_of_verl

RATE = 3e-4


def grown(folder: Path, number: int, num_trees: int) -> ramify.Rollout:
    """Trees of the policy in the folder, of other problems for each update."""
    return ramify.rollout_sync(
        preset="planned", task="herds", engine__model=str(folder), prompts=num_trees, seed=number, task__split="train"
    )


def logprobs(policy: Any, batch: Any) -> Any:
    """(B, R) of the response's tokens, under the policy."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    logits = policy(input_ids=ids, attention_mask=mask, position_ids=batch["position_ids"]).logits
    length = batch["responses"].shape[1]
    found = logits[:, -length - 1 : -1].log_softmax(-1)
    return found.gather(-1, batch["responses"][..., None])[..., 0]


def main(model: Path, num_updates: int, num_trees: int) -> None:
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimiser = torch.optim.Adam(policy.parameters(), lr=RATE, betas=(0.9, 0.99))
    estimate, policy_loss = get_adv_estimator_fn("ramify"), get_policy_loss_fn("ramify")
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = model
        for number in range(num_updates):
            trees = grown(folder, number, num_trees)
            data = DataProto.from_single_dict(rows_of_verl.batch(trees.rows()).single_dict())
            batch = data.batch
            advantages, _ = estimate(batch["rm_scores"], batch["response_mask"])
            config.global_batch_info.update(
                {"batch_num_tokens": batch["response_mask"].sum(), "global_batch_size": len(data)}
            )
            now = logprobs(policy, batch)
            loss, _ = policy_loss(
                now.detach(), now, advantages, batch["response_mask"], loss_agg_mode="seq-mean-token-sum", config=config
            )
            optimiser.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimiser.step()
            gap = (now.detach() - batch["rollout_log_probs"])[batch["response_mask"] > 0].abs().max()
            reward = fmean(said["reward"] for said in data.non_tensor_batch["ramify"])
            print(
                f"{number + 1:>3}  reward {reward:.3f}, {len(data)} rows, "
                f"gradient {float(norm):.3f}, logprobs at most {float(gap):.0e} from the engine's",
                flush=True,
            )
            folder = Path(scratch, str(number))
            policy.save_pretrained(folder)
            for file in model.glob("tokenizer*"):
                (folder / file.name).write_bytes(file.read_bytes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("updates", type=int, nargs="?", default=20)
    parser.add_argument("trees", type=int, nargs="?", default=24)
    options = parser.parse_args()
    main(options.model, options.updates, options.trees)
