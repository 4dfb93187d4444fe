import random
from itertools import islice

import pytest
from models.countdown_episodes import demonstration
from models.pieces import encode_pieces
from models.refine_episodes import (
    KINDS,
    SHORT_WEIGHT,
    Attempt,
    critique,
    draw_transcripts,
    grade,
    is_solvable,
    next_numbers,
    prompt_of,
    solved,
    templates,
    transcript,
)
from tests.models.test_countdown_episodes import TOKENIZER

from ramify.config.presets import preset
from ramify.core.format import span_ids
from ramify.formats.tags import spans_of
from ramify.tasks.countdown import CountdownProblem, generate, score
from ramify.tools.calculator import CalculatorState, apply

PROBLEM = CountdownProblem((13, 7, 1, 5), 99)


def attempt(*steps: str, problem: CountdownProblem = PROBLEM, answer: str | None = None) -> Attempt:
    """What the model would have written to take these steps and give this answer."""
    pieces = demonstration(problem, steps)[1:-1]
    text = "".join(piece.text for piece in pieces)
    return Attempt(problem, text if answer is None else f"{text}<answer>{answer}</answer>")


@pytest.mark.parametrize(
    ("written", "num_good", "said", "grade_"),
    [
        (attempt("7+1", "13*8", "104-5", answer="99"), 3, "reached 99 target 99 right", 95),
        (attempt("7+1", "13*8", "104+5", answer="109"), 2, "reached 109 target 99 wrong step 3", -40),
        (attempt("13+5", "18+7", "25+1", answer="26"), 0, "reached 26 target 99 wrong step 1", -90),
        (attempt("7+1", "13*8", answer="99"), 2, "reached 104 target 99 missing step", -10),
        (attempt("8+1", answer="9"), 1, "reached no number target 99 missing step", -10),
        (attempt("8+1", "7+1", "13*8", "104+5", answer="109"), 3, "reached 109 target 99 wrong step 4", -30),
        (attempt(answer="99"), 0, "reached no number target 99 missing step", -90),
    ],
)
def test_what_is_said_of_an_attempt(written: Attempt, num_good: int, said: str, grade_: int) -> None:
    assert (written.num_good, critique(written), grade(written)) == (num_good, said, grade_)


def test_a_rewrite_keeps_the_good_steps_and_reaches_the_target() -> None:
    written = attempt("8+1", "7+1", "13*8", "104+5", answer="109")
    pieces = transcript("rewrite", written, templates()["rewrite"], random.Random(0))
    text = "".join(piece.text for piece in pieces[1:]).removesuffix("<|end|>")
    assert [piece.text for piece in pieces if piece.kind == "model"][:2] == ["<calc>7+1</calc>", "<calc>13*8</calc>"]
    assert all(score(PROBLEM.question, text).values())


def test_every_rewrite_of_a_random_attempt_is_right() -> None:
    rng = random.Random(1)
    for problem in generate("train", 60, 3):
        state, steps = CalculatorState(problem.numbers), list[str]()
        while len(state.numbers) > 1:
            step, _ = rng.choice(list(next_numbers(state.numbers)))
            state, _, is_allowed = apply(state, step)
            assert is_allowed
            steps.append(step)
        written = attempt(*steps, problem=problem, answer=str(state.numbers[0]))
        assert written.is_right == (written.num_good == len(steps))
        pieces = transcript("rewrite", written, templates()["rewrite"], rng)
        assert Attempt(problem, "".join(piece.text for piece in pieces[1:]).removesuffix("<|end|>")).is_right


def test_every_problem_can_be_solved_and_what_cannot_is_refused() -> None:
    assert all(is_solvable(tuple(sorted(p.numbers)), p.target) for p in generate("heldout", 50, 0))
    assert not is_solvable((1, 1), 99)
    with pytest.raises(ValueError, match="99 cannot be made from"):
        solved((1, 1), 99, random.Random(0))


def test_only_what_stands_behind_the_prompt_is_learnt_and_the_prompt_is_the_preset_s() -> None:
    written = attempt("7+1", "13*8", "104+5", answer="109")
    actions = preset("mctsr").small["actions"]
    for kind in KINDS:
        template = actions[kind]["template"]
        ids, weights = encode_pieces(transcript(kind, written, template, random.Random(0)), TOKENIZER)
        values = {"question": PROBLEM.question, "answer": written.text, "critique": critique(written)}
        prompt = span_ids(TOKENIZER, spans_of(template, values))
        assert ids[: len(prompt)] == prompt
        assert set(weights[: len(prompt)]) == {0.0}
        assert set(weights[len(prompt) :]) == {1.0 if kind == "rewrite" else SHORT_WEIGHT}
        assert prompt == TOKENIZER.encode(prompt_of(template, written, critique(written)), allow_special=True)
        assert ids[-1] == TOKENIZER.eos_id


def test_the_words_of_the_transcripts_are_words_of_the_tokenizer() -> None:
    for said in (
        "reached 99 target 99 right",
        "reached 26 target 99 wrong step 1",
        "reached 104 target 99 missing step",
    ):
        for word in said.split():
            assert word.isdigit() or len(TOKENIZER.encode(f" {word}")) == 1
    assert len(TOKENIZER.encode("reached")) == 1


def test_transcripts_of_every_kind_are_drawn_as_often() -> None:
    attempts = [attempt("7+1", "13*8", "104+5", answer="109"), attempt("13+7", "20+5", "25+1", answer="26")]
    drawn = list(islice(draw_transcripts(random.Random(0), attempts), 30))
    ends = [pieces[0].text.rpartition(" ")[2].partition("<")[0] for _, pieces in drawn]
    assert [ends.count(kind) for kind in KINDS] == [10, 10, 10]
