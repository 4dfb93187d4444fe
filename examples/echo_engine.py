"""An engine: it answers with letters of the question, drawn by the request's seed. It has no model and no logprobs.

ramify rollout --engine examples/echo_engine.py:Echo --prompts 2
python examples/echo_engine.py          (checks it against the contract of an engine)
"""

from random import Random

import numpy as np

from ramify import ByteCodec, Capabilities, EngineError, Finish, Generation


class Echo:
    codec = ByteCodec(is_exact=True)
    capabilities = Capabilities(name="echo", context_length=4096, has_seeds=True, is_deterministic=True)

    def __init__(self):
        self.is_closed = False

    async def generate(self, request):
        room = min(request.max_tokens, self.capabilities.context_length - len(request.ids))
        if self.is_closed or room < 1:
            raise EngineError("closed" if self.is_closed else "context_full", f"{len(request.ids)} tokens")
        ids, num_run = request.ids.tolist(), request.num_run
        turn = self.turn(ids[: len(ids) - num_run], request)
        goes_on = turn[:num_run] == ids[len(ids) - num_run :] and len(turn) > num_run
        left = turn[num_run:] if goes_on else self.turn(ids, request)
        said = np.array(left[:room], np.int32)
        finish = self.finish(turn, request.stops) if len(left) <= room else Finish("length")
        return Generation(said, finish, num_billed=len(said), num_prefilled=len(ids))

    async def close(self):
        self.is_closed = True

    def turn(self, context, request):
        """The whole turn behind a context, the same however it is divided into requests."""
        draws = Random(request.seed if request.sampling.temperature else 0)
        letters = [i for i in context if 97 <= i <= 122] or [97]
        text = bytes(draws.choices(letters, k=5)).decode()
        said = self.codec.encode(f"<answer>{text}</answer>")
        return said if "</answer>" in request.stops else [*said, self.codec.eos_id]

    def finish(self, turn, stops):
        return Finish("end_of_sequence") if turn[-1] == self.codec.eos_id else Finish("stop", "</answer>")


if __name__ == "__main__":
    from ramify.testing import check_engine

    check_engine(Echo)
