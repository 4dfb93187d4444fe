import asyncio

import pytest

from ramify.core.engine import Generation, Request
from ramify.core.errors import ConfigError, ContractError, EngineError
from ramify.core.segment import token_array
from ramify.engines.faults import Delay, Fault
from ramify.engines.patience import Patience
from ramify.engines.retrying import Retrying, RetryPolicy, backoff_s
from ramify.engines.scripted import Scripted
from ramify.engines.scripts import ScriptedTurn
from ramify.runner.clock import run_virtual

REQUEST = Request(token_array(list(b"q")), max_tokens=10, seed=5)
POLICY = RetryPolicy()
NO_DELAY = Delay()


def engine(*faults: Fault, policy: RetryPolicy = POLICY, delay: Delay = NO_DELAY) -> tuple[Scripted, Retrying]:
    inner = Scripted(lambda turn: "ok", faults=faults, delay=delay)
    return inner, Retrying(inner, policy)


def answer(retrying: Retrying) -> tuple[Generation, float]:
    async def main() -> tuple[Generation, float]:
        generation = await retrying.generate(REQUEST)
        return generation, asyncio.get_running_loop().time()

    return run_virtual(main())


def test_a_fault_that_may_pass_is_tried_again_after_a_pause() -> None:
    inner, retrying = engine(Fault("error", calls=(0, 1)))
    generation, seconds = answer(retrying)
    assert generation.ids.tolist() == [*b"ok", 256]
    assert (inner.num_calls, retrying.num_retries) == (3, 2)
    assert 0 < seconds < 0.5 + 1.0


def test_the_last_try_says_why() -> None:
    inner, retrying = engine(Fault("error", share=1.0, reason="engine_503"))
    with pytest.raises(EngineError, match="engine_503"):
        answer(retrying)
    assert inner.num_calls == 3


def test_a_fault_that_will_not_pass_is_not_tried_again() -> None:
    inner, retrying = engine(Fault("error", share=1.0, reason="engine_400", is_retryable=False))
    with pytest.raises(EngineError, match="engine_400"):
        answer(retrying)
    assert inner.num_calls == 1


@pytest.mark.parametrize("kind", ["nan_logprobs", "wrong_length", "bad_ids", "no_tokens", "too_many_tokens"])
def test_an_unsound_generation_is_refused_and_not_repaired(kind: str) -> None:
    inner, retrying = engine(Fault(kind, calls=(0,)))  # type: ignore[arg-type]
    with pytest.raises(EngineError):
        answer(retrying)
    assert inner.num_calls == 1


def test_an_aborted_turn_is_sampled_again_and_its_tokens_are_counted_as_wasted() -> None:
    _, retrying = engine(Fault("abort", calls=(0,)))
    assert answer(retrying)[0].finish.kind == "end_of_sequence"
    assert (retrying.num_retries, retrying.num_wasted) == (1, 3)


def test_a_hang_ends_at_the_deadline_and_is_tried_again() -> None:
    policy = RetryPolicy(patience=Patience(start_s=20.0, prefill_s=1.0, token_s=2.0), base_s=0.0)
    inner, retrying = engine(Fault("hang", calls=(0,)), policy=policy)
    assert answer(retrying)[1] == 20 + 1 * 1 + 10 * 2
    assert (inner.num_calls, inner.num_active) == (2, 0)
    _, hanging = engine(Fault("hang", share=1.0), policy=policy)
    with pytest.raises(EngineError, match="engine_hang: no answer in 41 s"):
        answer(hanging)


def test_a_slow_call_that_its_size_explains_is_no_hang() -> None:
    policy = RetryPolicy(patience=Patience(start_s=1.0, prefill_s=0.0, token_s=5.0))
    _, retrying = engine(policy=policy, delay=Delay(token_s=4.0))
    assert answer(retrying)[1] == 12.0


def test_whatever_an_engine_raises_becomes_an_engine_error_but_a_broken_contract_stays_one() -> None:
    def broken(turn: ScriptedTurn) -> str:
        raise ZeroDivisionError("mine") if turn.seed == 5 else ContractError("yours")

    with pytest.raises(EngineError, match="engine_raised: ZeroDivisionError: mine"):
        answer(Retrying(Scripted(broken)))
    with pytest.raises(ContractError, match="yours"):
        run_virtual(Retrying(Scripted(broken)).generate(Request(REQUEST.ids, 1, seed=6)))


def test_cancelling_reaches_the_engine_and_is_not_tried_again() -> None:
    inner, retrying = engine(Fault("hang", share=1.0))

    async def main() -> None:
        task = asyncio.create_task(retrying.generate(REQUEST))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    assert (inner.num_calls, inner.num_active) == (1, 0)


def test_an_engine_that_cancels_itself_is_at_fault() -> None:
    def cancelled(turn: ScriptedTurn) -> str:
        raise asyncio.CancelledError

    with pytest.raises(EngineError, match="engine_raised: it cancelled itself"):
        answer(Retrying(Scripted(cancelled)))


def test_pauses_grow_have_a_cap_and_follow_from_the_seed() -> None:
    def pauses(seed: int) -> list[float]:
        return [backoff_s(number, seed=seed, base_s=1.0, cap_s=4.0) for number in range(1, 6)]

    assert pauses(1) == pauses(1) != pauses(2)
    for seed in range(50):
        assert all(0 <= p <= limit for p, limit in zip(pauses(seed), [1, 2, 4, 4, 4], strict=True))


def test_a_policy_without_a_try_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 try"):
        RetryPolicy(max_tries=0)
