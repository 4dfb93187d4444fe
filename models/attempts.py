"""A model's own attempts at countdown problems: what its critiques, rewrites and grades are learnt from."""

from pathlib import Path

from models.evaluate import sample
from models.exams import countdown_exam
from models.refine_episodes import Attempt

from ramify.engines.tokenizer import TokenizerFile
from ramify.tasks.countdown import Split, parse_question


def own_attempts(
    folder: Path, *, seed: int, num_problems: int = 6000, num_samples: int = 4, split: Split = "train"
) -> list[Attempt]:
    """Sample the model in `folder` at temperature 1, `num_samples` times a problem; attempts of a problem in a row."""
    tokenizer = TokenizerFile(folder / "tokenizer.json")
    exam = countdown_exam(num_problems, seed, split=split)
    rows = [row for group in sample(folder, exam, num_samples=num_samples, seed=seed) for row in group]
    return [
        Attempt(parse_question(row.agent.question), tokenizer.decode(row.said_ids(tokenizer.eos_id))) for row in rows
    ]
