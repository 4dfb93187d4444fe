"""verl's manager of rollouts as trees: its own `DataProto`, `TokenOutput` and configuration of rollouts. The built-in
model stands behind the client, which takes ids and gives ids as verl's does."""

import asyncio
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramify.core.engine import Request
from ramify.core.errors import ConfigError, ExportError, RamifyError
from ramify.core.segment import Sampling, token_array
from ramify.engines.builtin import FOLDER, Builtin
from ramify.integrations.background_loop import run_in_background
from ramify.tasks.countdown import Countdown

pytestmark = [
    pytest.mark.trainers,
    pytest.mark.filterwarnings("ignore"),  # of other people's libraries
]
DataProto = pytest.importorskip("verl", reason="verl is not installed: make test-trainers").DataProto

PROMPTS, RESPONSES, N = 64, 192, 4
ENGINES: list[Builtin] = []
TOML = 'strategy = {name = "planned", options = {children = [2.0, 2.0]}}\ntask.name = "countdown"\n'
QUESTIONS = tuple(problem.question for problem in Countdown().problems("heldout", 5, 2))


@pytest.fixture(autouse=True)
def engines() -> Iterator[list[Builtin]]:
    """Those behind the clients of a test; closed where they run."""
    ENGINES.clear()
    yield ENGINES
    for engine in ENGINES:
        run_in_background(engine.close())


class Client:
    """Answers as `LLMServerClient.generate` does. The first `num_broken` requests fail."""

    def __init__(self, num_broken: float = 0) -> None:
        self.engine = Builtin()
        ENGINES.append(self.engine)
        self.num_broken = num_broken
        self.laws: list[dict[str, Any]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.num_broken -= 1
        if self.num_broken >= 0:
            raise ConnectionError("the actor died")
        self.laws.append(sampling_params)
        made = await self.engine.generate(
            Request(
                token_array(prompt_ids),
                sampling_params["max_tokens"],
                sampling_params.get("seed", 0),
                stops=tuple(sampling_params["stop"]),
                sampling=Sampling(sampling_params["temperature"]),
            )
        )
        assert made.logprobs is not None
        return TokenOutput(
            token_ids=made.ids.tolist(),
            log_probs=made.logprobs.tolist(),
            stop_reason="completed",
            extra_fields={"global_steps": 7, "num_cached_tokens": None},
        )


def config(path: Path, toml: str = TOML, **changes: Any) -> Any:
    """verl's own file of rollouts, and what the manager reads of the rest; `changes` by path, dots as `__`."""
    from omegaconf import OmegaConf

    (path / "run.toml").write_text(toml, "utf-8")
    made = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": OmegaConf.load(str(files("verl") / "trainer/config/rollout/rollout.yaml")),
                "model": {"path": str(FOLDER)},
                "actor": {"policy_loss": {"loss_mode": "ramify"}},
            },
            "algorithm": {"adv_estimator": "ramify"},
        }
    )
    rollout: dict[str, Any] = {"name": "vllm", "n": N, "prompt_length": PROMPTS, "response_length": RESPONSES}
    rollout["agent.agent_loop_config_path"] = str(path / "run.toml")
    named = {f"actor_rollout_ref.rollout.{name}": value for name, value in rollout.items()}
    for name, value in {**named, **{name.replace("__", "."): value for name, value in changes.items()}}.items():
        OmegaConf.update(made, name, value, force_add=True)
    return made


def manager(path: Path, client: Client | None = None, **changes: Any) -> Any:
    from verl.utils.import_utils import load_class_from_fqn

    named = load_class_from_fqn("ramify.integrations.verl.agent_loop.TreeAgentLoopManager", "AgentLoopManager")
    return named.create(config=config(path, **changes), llm_client=client or Client())


def asked(questions: tuple[str, ...] = QUESTIONS, **meta: Any) -> Any:
    """A batch as verl's trainer reads it from its data, with its uids."""
    import torch

    size = len(questions)
    columns = {
        "raw_prompt": [[{"role": "user", "content": question}] for question in questions],
        "reward_model": [{"style": "rule", "ground_truth": "24"} for _ in questions],
        "data_source": ["countdown"] * size,
        "uid": [f"uid-{place}" for place in range(size)],
    }
    made = {name: np.fromiter(values, object, count=size) for name, values in columns.items()}
    batch = DataProto.from_single_dict({"dummy_tensor": torch.zeros(size, 1), **made})
    batch.meta_info = {"global_steps": 3, **meta}
    return batch


def test_a_batch_has_a_leaf_for_each_row_that_verl_asks_for(tmp_path: Path) -> None:
    """Joined with the trainer's batch as `fit` joins it, and handed to the estimator of our name."""
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    import ramify.integrations.verl  # noqa: F401 - registers

    batch, client = asked(), Client()
    made = manager(tmp_path, client).generate_sequences(batch.repeat(repeat_times=N, interleave=True))
    assert made.meta_info["timing"]["ramify/rollout"] > 0
    rewards = [about["reward"] for about in made.non_tensor_batch["ramify"]]
    assert made.meta_info["timing"]["ramify/mean_reward"] == pytest.approx(np.mean(rewards))
    joined = batch.repeat(repeat_times=N, interleave=True).union(made)
    assert len(joined) == len(QUESTIONS) * N
    assert joined.batch["input_ids"].shape == (len(joined), PROMPTS + RESPONSES)
    assert joined.batch["responses"].shape == joined.batch["rm_scores"].shape == (len(joined), RESPONSES)
    said = [client.engine.codec.decode(row[row > 0].tolist()) for row in joined.batch["prompts"].numpy()]
    assert all(question in text for question, text in zip(np.repeat(QUESTIONS, N), said, strict=True))
    mask = joined.batch["response_mask"]
    advantages, _ = get_adv_estimator_fn("ramify")(joined.batch["rm_scores"], mask)
    assert torch.equal(advantages, joined.batch["rm_scores"]) and advantages.abs().sum() > 0
    assert (joined.batch["rollout_log_probs"][mask > 0] < 0).all()
    assert set(joined.batch["versions"][mask > 0].tolist()) == {7}
    assert {about["policy"] for about in joined.non_tensor_batch["ramify"]} == {"once"}
    assert all(law["temperature"] == 1.0 and law["logprobs"] is True for law in client.laws)


def test_a_batch_is_the_same_again_and_inside_an_event_loop(tmp_path: Path) -> None:
    import torch

    first = manager(tmp_path).generate_sequences(asked().repeat(repeat_times=N, interleave=True))

    async def main() -> Any:
        return await (await manager(tmp_path)).generate_sequences(asked().repeat(repeat_times=N, interleave=True))

    again = asyncio.run(main())
    assert torch.equal(first.batch["input_ids"], again.batch["input_ids"])
    assert torch.equal(first.batch["rm_scores"], again.batch["rm_scores"])


def test_validation_is_answered_by_chains_and_scored_by_rewards(tmp_path: Path) -> None:
    """verl fills a batch up with its first rows, so the last group may be the first again."""
    rows = asked(QUESTIONS, validate=True).repeat(repeat_times=2, interleave=True)
    made = manager(tmp_path).generate_sequences(DataProto.concat([rows, rows.slice(0, 1)]))
    scores = made.batch["rm_scores"]
    assert len(made) == 2 * len(QUESTIONS) + 1 and ((scores != 0).sum(-1) <= 1).all()
    rewards = [about["reward"] for about in made.non_tensor_batch["ramify"]]
    assert scores.sum(-1).tolist() == pytest.approx(rewards)


def test_requests_that_fail_are_tried_again_and_a_dead_server_is_told(tmp_path: Path) -> None:
    rows = asked().repeat(repeat_times=N, interleave=True)
    fast = TOML + "engine.retry = {base_s = 0.01, cap_s = 0.02, max_busy_s = 0.5, max_down_s = 0.5}\n"
    assert len(manager(tmp_path, Client(3), toml=fast).generate_sequences(rows)) == len(rows)
    with pytest.raises(RamifyError, match="the actor died"):
        manager(tmp_path, Client(float("inf")), toml=fast).generate_sequences(rows)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"algorithm__adv_estimator": "grpo"}, "adv_estimator = 'grpo'"),
        ({"actor_rollout_ref__actor__policy_loss__loss_mode": "vanilla"}, "loss_mode = 'vanilla'"),
        ({"actor_rollout_ref__rollout__top_p": 0.9}, "top_p = 0.9"),
        ({"actor_rollout_ref__rollout__agent__agent_loop_config_path": None}, "name the TOML file"),
        ({"actor_rollout_ref__rollout__temperature": 0.5, "toml": TOML + "[actions.policy.sampling]\ntemperature = 1"},
         "rollout.temperature = 0.5"),
    ],
)  # fmt: skip
def test_settings_that_would_train_something_else_are_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        manager(tmp_path, **changes)


def test_prompts_that_do_not_fit_and_rows_of_remax_are_refused(tmp_path: Path) -> None:
    rows = asked().repeat(repeat_times=N, interleave=True)
    with pytest.raises(ExportError, match="prompt tokens do not fit 4"):
        manager(tmp_path, actor_rollout_ref__rollout__prompt_length=4).generate_sequences(rows)
    rows.non_tensor_batch["__do_sample__"] = np.ones(len(rows), bool)
    with pytest.raises(ConfigError, match="REMAX"):
        manager(tmp_path).generate_sequences(rows)


def test_rows_of_a_tree_that_was_grown_again_say_so(tmp_path: Path) -> None:
    """Which trees are left out depends on what was sampled, so the gradient is not exact."""
    toml = TOML + "max_failed_share = 1.0\nengine.retry = {max_tries = 1}\n"
    made = manager(tmp_path, Client(1), toml=toml).generate_sequences(asked().repeat(repeat_times=N, interleave=True))
    about = made.non_tensor_batch["ramify"]
    again = [row for row in about if "grown again" in " ".join(row["reasons"])]
    assert 0 < len(again) < len(about)
    assert not any(row["is_unbiased"] for row in again)


def test_the_run_of_the_page_grows_by_the_names_of_sglang(tmp_path: Path) -> None:
    """SGLang has no seeds, and its own names of parameters."""
    page = (Path(__file__).parents[2] / "docs/coming-from/verl.md").read_text("utf-8")
    toml = page.partition("```toml\n")[2].partition("```")[0]
    client = Client()
    rows = asked(QUESTIONS[:2]).repeat(repeat_times=8, interleave=True)
    rollout = {"actor_rollout_ref__rollout__name": "sglang", "actor_rollout_ref__rollout__n": 8}
    assert len(manager(tmp_path, client, toml=toml, **rollout).generate_sequences(rows)) == 16
    assert all(law["no_stop_trim"] and "seed" not in law for law in client.laws)
