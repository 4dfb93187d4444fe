"""Classes for TRL's `environment_factory`."""

from typing import Any


class GuessGame:
    """Guess a number that the row holds."""

    def __init__(self) -> None:
        self.goal = 0
        self.guesses: list[int] = []
        self.counted = self._count
        self.seen: dict[str, Any] = {}

    def reset(self, **row: Any) -> str:
        self.goal, self.guesses, self.seen = row["size"] // 2, [], row
        return f" It is from 0 to {row['size']}."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.
        """
        if number < 0:
            raise ValueError("the number is not negative")
        self.guesses.append(number)
        return "right" if number == self.goal else "lower" if number > self.goal else "higher"

    async def history(self) -> str:
        """The guesses so far."""
        return str(self.guesses)

    def _count(self) -> int:
        return len(self.guesses)

    def get_reward(self) -> float:
        return float(self.goal in self.guesses) / max(1, len(self.guesses))


class NeedsAnswer:
    """A class whose reset wants the answer."""

    def reset(self, prompt: str, answer: int) -> None:
        self.answer = answer

    def look(self) -> str:
        """Look around."""
        return "nothing here"
