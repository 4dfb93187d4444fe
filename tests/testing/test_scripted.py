import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.codec import ByteCodec
from ramify.core.engine import Generation, Request, checked
from ramify.core.errors import ContractError, EngineError
from ramify.core.segment import Sampling, token_array
from ramify.testing.clock import run_virtual
from ramify.testing.planned_faults import Delay, Fault
from ramify.testing.policies import RandomAgent, chains, table
from ramify.testing.scripted import SCRIPTED, Scripted
from ramify.testing.scripts import Rule, ScriptedTurn, Speech, TokenLaw, tempered

CODEC = ByteCodec(is_exact=True)
STOPS = ("</calc>", "</answer>")


def ask(text: str, **options: object) -> Request:
    defaults: dict[str, object] = {"max_tokens": 1000, "seed": 7, "stops": STOPS}
    return Request(token_array(CODEC.encode(text)), **{**defaults, **options})  # type: ignore[arg-type]


def answer(engine: Scripted, request: Request) -> Generation:
    generation = run_virtual(engine.generate(request))
    return checked(generation, request, engine.codec.vocab_size)


def text_of(generation: Generation) -> str:
    return CODEC.decode(generation.ids)


def go_on(request: Request, generation: Generation, **changes: object) -> Request:
    """The request that continues the run a generation left unfinished."""
    ids = np.concatenate([request.ids, generation.ids])
    return replace(request, ids=ids, num_run=request.num_run + len(generation.ids), **changes)  # type: ignore[arg-type]


def test_a_table_says_the_line_of_the_longest_key_the_context_ends_with() -> None:
    engine = Scripted(table({"?": "short", "who?": "long", "": "any"}))
    assert text_of(answer(engine, ask("who?"))) == "long"
    assert text_of(answer(engine, ask("what?"))) == "short"
    assert text_of(answer(engine, ask("."))) == "any"


def test_a_table_without_a_line_names_the_context() -> None:
    with pytest.raises(ContractError, match=r"ends in 'who'"):
        answer(Scripted(table({"?": "x"})), ask("who"))


def test_a_turn_without_a_stop_word_ends_with_a_sampled_end_of_sequence() -> None:
    generation = answer(Scripted(lambda turn: "hi"), ask("q"))
    assert generation.ids.tolist() == [*b"hi", CODEC.eos_id]
    assert generation.finish.kind == "end_of_sequence"


def test_a_stop_word_ends_the_turn_and_is_kept() -> None:
    generation = answer(Scripted(lambda turn: "<calc>1+2</calc> 3 never seen"), ask("q"))
    assert text_of(generation) == "<calc>1+2</calc>"
    assert (generation.finish.kind, generation.finish.matched) == ("stop", "</calc>")


def test_the_longer_of_two_stop_words_that_end_together_is_matched() -> None:
    generation = answer(Scripted(lambda turn: "a stop"), ask("q", stops=("stop", "op")))
    assert generation.finish.matched == "stop"


def test_max_tokens_cut_a_turn_which_then_goes_on() -> None:
    engine, request = Scripted(lambda turn: "hello"), ask("q", max_tokens=3)
    first = answer(engine, request)
    assert (text_of(first), first.finish.kind) == ("hel", "length")
    rest = answer(engine, go_on(request, first, max_tokens=1000, seed=99))
    assert (text_of(rest), rest.finish.kind) == ("lo", "end_of_sequence")


def test_a_rule_that_would_not_have_said_the_run_is_asked_with_it_as_context() -> None:
    def rule(turn: ScriptedTurn) -> str:
        return turn.context[-2:] + str(turn.seed)

    engine, request = Scripted(rule), ask("ab", max_tokens=3, seed=1)
    first = answer(engine, request)
    assert text_of(first) == "ab1"
    assert text_of(answer(engine, go_on(request, first, seed=2))) == "b12"


def test_the_context_has_an_end() -> None:
    engine = Scripted(lambda turn: "x" * 100, capabilities=replace(SCRIPTED, context_length=10))
    generation = answer(engine, ask("1234"))
    assert (len(generation.ids), generation.finish.kind) == (6, "length")
    with pytest.raises(EngineError, match="context_full"):
        answer(engine, ask("1234567890"))


def test_planned_uncertainty_is_returned() -> None:
    engine = Scripted(lambda turn: Speech("ab", logprob=-0.25, entropy=1.5, topk=(-0.25, -2.0)))
    generation = answer(engine, ask("q", topk=10, measures=frozenset({"entropy"}), topk_tokens=2))
    assert generation.logprobs is not None
    assert generation.logprobs.tolist() == [-0.25] * 3
    assert generation.measures["entropy"].tolist() == [1.5] * 3
    assert [t.tolist() for t in generation.topk] == [[-0.25, -2.0]] * 2


def test_the_first_of_the_top_logprobs_of_a_rule_is_the_sampled_one_and_they_are_a_law() -> None:
    generation = answer(Scripted(lambda turn: "some words"), ask("q", topk=10))
    assert generation.logprobs is not None
    for logprob, top in zip(generation.logprobs, generation.topk, strict=True):
        assert top[0] == logprob
        assert np.exp(top).sum() <= 1 + 1e-6


def test_an_engine_without_logprobs_gives_none() -> None:
    silent = replace(SCRIPTED, logprobs=None, measures=frozenset(), max_topk=0)
    generation = answer(Scripted(capabilities=silent), ask("q", topk=5, measures=frozenset({"entropy"})))
    assert generation.logprobs is None
    assert not generation.measures
    assert generation.topk == ()


def test_chains_have_the_planned_lengths() -> None:
    engine = Scripted(chains(3))
    context, calls = "q", 0
    while (turn := text_of(answer(engine, ask(context)))).endswith("</calc>"):
        context, calls = context + turn + " <result>\n1\n</result>", calls + 1
    assert calls == 3
    assert turn == "<answer>7</answer>"


# -- division into requests -------------------------------------------------------------------------------------------


def seeded(turn: ScriptedTurn) -> str:
    return ["words, then <calc>1</calc>", "naïve ✓ text", "<answer>9</answer>"][turn.seed % 3]


@pytest.mark.slow
@pytest.mark.covers("S0.3")
@pytest.mark.parametrize("script", [seeded, chains(2, 1), RandomAgent()], ids=["rule", "chains", "law"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), pieces=st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_a_turn_is_the_same_however_it_is_divided_into_requests(
    script: Rule | TokenLaw, seed: int, pieces: list[int]
) -> None:
    engine = Scripted(script)
    wanted = ask("q", seed=seed, topk=3, topk_tokens=5, measures=frozenset({"entropy"}))
    whole = answer(engine, wanted)
    request, parts = wanted, list[Generation]()
    for size in [*pieces, 1000]:
        parts.append(answer(engine, replace(request, max_tokens=size)))
        if parts[-1].finish.kind != "length":
            break
        request = go_on(request, parts[-1], topk_tokens=max(0, 5 - request.num_run - len(parts[-1].ids)))
    assert np.concatenate([p.ids for p in parts]).tolist() == whole.ids.tolist()
    assert np.concatenate([p.logprobs for p in parts if p.logprobs is not None]).tolist() == whole.logprobs.tolist()  # type: ignore[union-attr]
    assert np.concatenate([p.measures["entropy"] for p in parts]).tolist() == whole.measures["entropy"].tolist()
    assert [t.tolist() for p in parts for t in p.topk] == [t.tolist() for t in whole.topk]
    assert parts[-1].finish == whole.finish


@pytest.mark.parametrize("cut", range(1, len("<calc>1+2</calc>")))
def test_a_stop_word_is_found_at_every_cut_of_it(cut: int) -> None:
    engine, request = Scripted(lambda turn: "<calc>1+2</calc>"), ask("q", max_tokens=cut)
    first = answer(engine, request)
    rest = answer(engine, go_on(request, first, max_tokens=100))
    assert text_of(first) + text_of(rest) == "<calc>1+2</calc>"
    assert rest.finish.matched == "</calc>"


def test_a_complete_stop_word_before_the_request_does_not_end_it() -> None:
    request = ask("<calc>1</calc>", num_run=len("<calc>1</calc>"))
    assert text_of(answer(Scripted(lambda turn: "more" if turn.context else "?"), request)) == "more"


# -- laws -------------------------------------------------------------------------------------------------------------


class Coin:
    """Heads, tails or the end."""

    def next(self, ids: object) -> np.ndarray:
        law = np.zeros(257)
        law[ord("h")], law[ord("t")], law[256] = 0.5, 0.25, 0.25
        return law


def test_a_law_is_drawn_from_with_exact_logprobs_entropy_and_top() -> None:
    engine = Scripted(Coin())
    counts = dict.fromkeys(["h", "t", ""], 0)
    for seed in range(400):
        generation = answer(engine, ask("q", seed=seed, max_tokens=1, topk=2, measures=frozenset({"entropy"})))
        token = text_of(generation)
        counts[token] += 1
        assert generation.logprobs is not None
        assert generation.logprobs[0] == np.float32(np.log(0.5 if token == "h" else 0.25))
        assert generation.measures["entropy"][0] == pytest.approx(1.5 * np.log(2))
        assert np.exp(generation.topk[0]) == pytest.approx([0.5, 0.25] + [0.25] * (not token))
    assert counts["h"] == pytest.approx(200, abs=40)
    assert counts["t"] == pytest.approx(100, abs=35)


def test_temperature_top_k_and_top_p_shape_what_is_drawn() -> None:
    law = np.array([0.2, 0.5, 0.3])
    assert tempered(law, Sampling(temperature=0)).tolist() == [0, 1, 0]
    assert np.flatnonzero(tempered(law, Sampling(top_k=2))).tolist() == [1, 2]
    assert np.flatnonzero(tempered(law, Sampling(top_p=0.5))).tolist() == [1]
    assert np.flatnonzero(tempered(law, Sampling(top_p=0.51))).tolist() == [1, 2]
    hot = tempered(law, Sampling(temperature=0.5))
    assert hot / hot.sum() == pytest.approx(law**2 / (law**2).sum())


def test_the_random_agent_calls_answers_and_ends() -> None:
    engine = Scripted()
    turns = [text_of(answer(engine, ask("q", seed=seed))) for seed in range(300)]
    assert sum(t.endswith("</calc>") for t in turns) > 100
    assert sum(t.endswith("</answer>") for t in turns) > 30
    assert any(t.endswith("<calc></calc>") for t in turns)
    assert any("<" not in t for t in turns)
    assert all(len(t) < 60 for t in turns)


def test_the_random_agent_ends_after_an_answer_that_is_no_stop_word() -> None:
    engine = Scripted()
    generation = answer(engine, ask("q<answer>1", stops=("</calc>",), seed=3))
    assert text_of(generation).endswith("</answer>")
    assert generation.finish.kind == "end_of_sequence"


# -- time, versions, faults -------------------------------------------------------------------------------------------


def test_delays_are_exact() -> None:
    engine = Scripted(lambda turn: "abc", delay=lambda turn: Delay(call_s=turn.seed, token_s=0.5))

    async def main() -> float:
        await engine.generate(ask("q", seed=10))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 10 + 4 * 0.5


def test_a_version_that_changes_midway_divides_the_generation() -> None:
    engine = Scripted(lambda turn: "abcdef", delay=Delay(token_s=1.0), version=3)

    async def main() -> Generation:
        task = asyncio.create_task(engine.generate(ask("q")))
        await asyncio.sleep(2.5)
        engine.version = 4
        return await task

    assert engine.capabilities.has_versions
    assert run_virtual(main()).versions == ((3, 2), (4, 5))


def test_known_prefixes_are_counted_in_blocks_short_of_the_last_token() -> None:
    engine = Scripted(lambda turn: "abc", block_size=4)
    first = answer(engine, ask("12345678"))
    again = answer(engine, ask("12345678"))
    assert (first.num_cached, first.num_prefilled) == (0, 8)
    assert (again.num_cached, again.num_prefilled) == (4, 4)
    grown = answer(engine, ask("12345678abc+more"))
    assert (grown.num_cached, grown.num_prefilled) == (8, 8)
    other = answer(engine, ask("1234X678"))
    assert (other.num_cached, other.num_prefilled) == (4, 4)


def test_planned_errors_strike_the_calls_and_tries_they_name() -> None:
    engine = Scripted(lambda turn: "x", faults=[Fault("error", calls=(1,)), Fault("error", share=1.0, num_tries=1)])
    request = ask("q")
    with pytest.raises(EngineError, match="engine_500"):
        answer(engine, request)
    with pytest.raises(EngineError, match="planned for call 1"):
        answer(engine, request)
    assert text_of(answer(engine, request)) == "x"
    assert engine.num_calls == 3


def test_a_share_of_requests_fails_by_seed_in_every_run() -> None:
    def failing() -> list[int]:
        engine, failed = Scripted(lambda turn: "x", faults=[Fault("error", share=0.3)]), list[int]()
        for seed in range(100):
            try:
                answer(engine, ask("q", seed=seed))
            except EngineError:
                failed.append(seed)
        return failed

    assert failing() == failing()
    assert 15 < len(failing()) < 45


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan_logprobs", "bad_logprobs"),
        ("wrong_length", "bad_logprobs"),
        ("bad_ids", "bad_token_ids"),
        ("no_tokens", "no_tokens"),
        ("too_many_tokens", "too_many_tokens"),
    ],
)
def test_a_spoilt_generation_is_stopped_at_the_door(kind: str, reason: str) -> None:
    engine = Scripted(lambda turn: "some text", faults=[Fault(kind, share=1.0)])  # type: ignore[arg-type]
    with pytest.raises(EngineError) as caught:
        answer(engine, ask("q"))
    assert caught.value.reason == reason


def test_an_aborted_turn_keeps_what_it_had() -> None:
    generation = answer(Scripted(lambda turn: "abcde", faults=[Fault("abort", share=1.0)]), ask("q"))
    assert (text_of(generation), generation.finish.kind) == ("abc", "abort")


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    engine = Scripted(lambda turn: "x", faults=[Fault("hang", share=1.0)])

    async def main() -> None:
        task = asyncio.create_task(engine.generate(ask("q")))
        await asyncio.sleep(5)
        assert engine.num_active == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main())
    assert engine.num_active == 0


def test_calls_are_kept_when_wanted_and_none_is_answered_after_close() -> None:
    engine = Scripted(lambda turn: "x", keeps_calls=True)
    answer(engine, ask("q", request_id="r1"))
    assert engine.calls is not None
    assert [(c.request_id, c.fed.tolist(), c.sampled.tolist()) for c in engine.calls] == [("r1", [113], [120, 256])]
    run_virtual(engine.close())
    with pytest.raises(EngineError, match="engine_closed"):
        answer(engine, ask("q"))
