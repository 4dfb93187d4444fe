"""TimedEngine: wraps an engine and measures every try of a request.

The retries wrap this engine, so a failed try has its own duration and its own error. The check of generations wraps it
too. It changes no request and no generation.
"""

import asyncio
from contextlib import nullcontext

from ramify.core.engine import Capabilities, Engine, Generation, Remote, Request
from ramify.core.errors import EngineError
from ramify.engines.in_front import InFront, innermost
from ramify.telemetry.meters import Meters
from ramify.telemetry.spans import EngineLabels, Spans, error_type


class TimedEngine(InFront):
    """Records durations and tokens in `meters`, and a span in `spans` unless that is None."""

    def __init__(self, engine: Engine, model: str, meters: Meters, spans: Spans | None) -> None:
        super().__init__(engine)
        self._model = model
        self._is_remote = isinstance(innermost(engine), Remote)
        self._known: tuple[Capabilities, EngineLabels] | None = None
        self._meters = meters
        self._spans = spans

    async def generate(self, request: Request) -> Generation:
        clock = asyncio.get_running_loop().time
        labels, began = self._engine_labels(), clock()
        span = None if self._spans is None else self._spans.generation(labels, request, self.codec)
        generation: Generation | None = None
        error = ""
        try:
            with nullcontext() if self._spans is None or span is None else self._spans.current(span):
                generation = await self.engine.generate(request)
            return generation
        except EngineError as fault:
            error = error_type(fault.reason)
            raise
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        except Exception as fault:
            error = type(fault).__name__
            raise
        finally:
            duration_s = clock() - began
            self._measure(labels, duration_s, generation, error)
            if self._spans is not None and span is not None:
                if generation is not None:
                    self._spans.generated(span, generation, self.codec)
                span.end(duration_s, error)

    def _engine_labels(self) -> EngineLabels:
        """The engine's current labels. A server's name may be known only after connecting."""
        capabilities = self.capabilities
        if self._known is None or self._known[0] is not capabilities:
            provider, _, named = capabilities.name.partition(":")
            operation = "text_completion" if capabilities.has_token_ids else "chat"
            self._known = capabilities, EngineLabels(operation, provider, self._model or named, self._is_remote)
        return self._known[1]

    def _measure(self, labels: EngineLabels, duration_s: float, generation: Generation | None, error: str) -> None:
        named = {"operation": labels.operation, "provider": labels.provider, "model": labels.model}
        self._meters.record("gen_ai.client.operation.duration", duration_s, **named, error=error)
        if generation is None:
            return
        usage = self._meters.record
        if num_input := generation.num_cached + generation.num_prefilled:
            usage("gen_ai.client.token.usage", num_input, **named, token_type="input")
        usage("gen_ai.client.token.usage", generation.num_billed, **named, token_type="output")
