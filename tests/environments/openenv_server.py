"""A toy server of OpenEnv: `python openenv_server.py PORT MAX_SESSIONS`. A counter that slips by its own seed."""

import random
import sys
from typing import Any


def main() -> None:
    import uvicorn  # pyright: ignore[reportMissingImports]
    from openenv.core.env_server.http_server import create_app  # pyright: ignore[reportMissingImports]
    from openenv.core.env_server.interfaces import Environment  # pyright: ignore[reportMissingImports]
    from openenv.core.env_server.types import Action, Observation, State  # pyright: ignore[reportMissingImports]

    class Say(Action):
        message: str

    class Heard(Observation):
        echo: str

    class Counter(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
            self.rng, self.total, self.num_steps = random.Random(seed), 0, 0
            return Heard(echo="the total is 0", done=False, reward=None)

        def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
            if action.message == "cheat":
                raise ValueError("cheating is not allowed")
            self.num_steps += 1
            self.total += len(action.message) + self.rng.randrange(2)
            return Heard(
                echo=f"the total is {self.total}", done=self.total > 40, reward=1.0 if self.total > 40 else 0.0
            )

        @property
        def state(self) -> Any:
            return State(episode_id=str(id(self)), step_count=self.num_steps, total=self.total)

    app = create_app(Counter, Say, Heard, env_name="counter", max_concurrent_envs=int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
