"""When a server is asked again for its weights, in virtual time, and which answers count."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ramify.core.errors import ConfigError, EngineError
from ramify.engines.served.turn import Sampled
from ramify.engines.served.weights import RESTART_S, ServedWeights
from ramify.testing.clock import run_virtual

TOKENS = Sampled([1, 2, 3], "stop")


@dataclass
class Server:
    version: int | None = 3
    num_asked: int = 0
    fault: Exception | None = None

    async def ask(self) -> int | None:
        self.num_asked += 1
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return self.version


def virtually(main: Callable[[Server, ServedWeights], Awaitable[Any]]) -> None:
    async def run() -> None:
        server = Server()
        weights = ServedWeights(server.ask)
        weights.naming = "asked"
        await main(server, weights)

    run_virtual(run())


async def reason_of(work: Awaitable[Any]) -> str:
    with pytest.raises(EngineError) as caught:
        await work
    return caught.value.reason


def test_answers_that_follow_close_on_one_another_are_of_the_version_that_was_asked() -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        for _ in range(10):
            known = await weights.known()
            await asyncio.sleep(RESTART_S * 0.9)
            assert await weights.spans(TOKENS, known) == ((3, 3),)
        assert server.num_asked == 1

    virtually(main)


def test_behind_a_pause_in_which_it_could_have_restarted_it_is_asked_again() -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        await weights.spans(TOKENS, await weights.known())
        await asyncio.sleep(RESTART_S + 0.1)
        server.version = 2
        assert await weights.spans(TOKENS, await weights.known()) == ((2, 3),)
        assert server.num_asked == 2

    virtually(main)


def test_a_server_that_restarted_with_older_weights_than_it_confirmed_samples_nothing() -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        weights.confirm(3)
        await weights.known()
        await asyncio.sleep(RESTART_S + 0.1)
        server.version = 0
        assert await reason_of(weights.known()) == "stale_weights"
        server.version = 3
        assert (await weights.known()).version == 3

    virtually(main)


def test_an_answer_to_what_was_sent_before_a_failure_counts_if_the_server_is_still_the_same() -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        known = await weights.known()
        weights.forget()
        assert await weights.spans(TOKENS, known) == ((3, 3),)
        weights.forget()
        server.version = 0
        assert await reason_of(weights.spans(TOKENS, known)) == "mixed_versions"

    virtually(main)


@pytest.mark.parametrize("naming", ["asked", "answers", "none"])
def test_a_server_that_came_back_with_another_model_samples_nothing(naming: Any) -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        weights.naming = naming
        known = await weights.known()
        weights.forget()
        server.fault = ConfigError("it runs 'other', not 'ours'")
        assert await reason_of(weights.spans(TOKENS, known)) == "other_model"
        assert await reason_of(weights.known()) == "other_model"

    virtually(main)


def test_the_same_version_loaded_anew_is_another_one_to_what_was_on_its_way() -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        known = await weights.known()
        weights.confirm(3)
        assert await reason_of(weights.spans(TOKENS, known)) == "mixed_versions"

    virtually(main)


def test_a_version_that_somebody_else_changed_is_told_by_the_answer() -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        known = await weights.known()
        server.version = 4
        assert await reason_of(weights.spans(Sampled([1], "stop", version=4), known)) == "mixed_versions"
        known = await weights.known()
        assert await weights.spans(Sampled([1], "stop", version=4), known) == ((4, 1),)

    virtually(main)


def test_an_answer_without_the_names_that_the_others_have_is_refused() -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        weights.naming, server.version = "answers", None
        known = await weights.known()
        assert await reason_of(weights.spans(TOKENS, known)) == "bad_versions"
        assert await weights.spans(Sampled([], "abort"), known) == ()
        assert await weights.spans(Sampled([1], "stop", versions=((7, 1),)), known) == ((7, 1),)

    virtually(main)


@pytest.mark.parametrize("naming", ["asked", "answers", "none"])
def test_nothing_counts_that_was_on_its_way_when_an_update_ended_in_the_middle(naming: Any) -> None:
    async def main(server: Server, weights: ServedWeights) -> None:
        weights.naming = naming
        known = await weights.known()
        weights.break_off("the update to version 4 ended in the middle")
        assert weights.are_broken
        assert await reason_of(weights.known()) == "stale_weights"
        told = Sampled([1], "stop", versions=((3, 1),))
        assert await reason_of(weights.spans(told, known)) == "mixed_versions"
        weights.confirm(4)
        assert await reason_of(weights.spans(told, known)) == "mixed_versions"
        server.version = 4
        await weights.spans(Sampled([1], "stop", versions=((4, 1),)), await weights.known())

    virtually(main)
