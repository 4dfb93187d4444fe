"""huggingface/search-and-learn: beam search, DVTS and votes on scripted steps, rewards and answers.

A script says what each request at a text says; a step that ends with `.` is followed by the end of the sequence, which
the original never sees as text. n is a multiple of the beam's width here: ramify has no other.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Final

from tests.golden import beam, votes
from tests.originals.sources import DIFFERS, imports, source

from ramify.strategies.beam import AS_PUBLISHED

Given = Mapping[str, Any]
EMPTY_STEP: Final = "an empty step in a product of scores"
BOX: Final = "X"
"""Stands in scripts for the step that begins a box."""
ABSENT: Final = (
    "datasets",
    "huggingface_hub",
    "sal.models.reward_models",
    "sal.utils.hub",
    "tqdm",
    "vllm",
)


def steps_scenario(rng: random.Random) -> Given:
    """Scores of one value, of few, or all different; steps that repeat each other, say nothing, or end at once."""
    width, samples, num_levels = rng.choice((1, 2, 3, 4, 6)), rng.choice((1, 2, 3, 4, 6)), rng.randint(1, 6)
    values = rng.choice(((), (), (0.5,), (0.25, 0.5), (0.25, 0.5, 0.75), (0.1, 0.2, 0.3, 0.9)))
    share_ended = rng.choice((0.0, 0.05, 0.2))
    script: dict[str, list[str]] = {}
    scores: dict[str, float] = {}
    places = [""]
    for text in places:
        is_last = len(text) >= num_levels + 2 or len(places) > 600
        entries = [
            rng.choice("abcdefghX") * (rng.random() > 0.02) + "." * (is_last or rng.random() < share_ended)
            for _ in range(rng.randint(1, 6))
        ]
        script[text] = [entry or "." for entry in entries]
        for said in dict.fromkeys(entry.removesuffix(".") for entry in script[text]):
            if said:
                scores[text + said] = rng.choice(values) if values else rng.random()
            if said in script[text]:
                places.append(text + said)
    scores[""] = rng.choice(values) if values else rng.random()
    return {
        "n": width * samples,
        "beam_width": samples,
        "num_iterations": num_levels,
        "agg": rng.choice(("last", "min", "prod")),
        "lookahead": rng.choice((0, 0, 1, 2)),
        "filter_duplicates": rng.random() < 0.5,
        "sort_completed": rng.random() < 0.5,
        "script": script,
        "scores": scores | {f"{text}.": score for text, score in scores.items()},
    }


def votes_scenario(rng: random.Random) -> Given:
    """Answers that many agree on, and scores that tie."""
    n = rng.choice((1, 2, 3, 4, 8, 16, 32))
    values = rng.choice(((), (0.0, 0.5, 1.0), (0.5,)))
    return {
        "answers": [rng.choice("12345678"[: rng.choice((2, 4, 8))]) for _ in range(n)],
        "scores": [rng.choice(values) if values else rng.random() for _ in range(n)],
    }


class LLM:
    """vLLM: the i-th request at a text gets its i-th step; a greedy one the first. Without stop words it goes on."""

    def __init__(self, script: Mapping[str, Sequence[str]]) -> None:
        self.num_calls = 0
        self.said_nothing = False
        """Whether a step behind another one did nothing but end the sequence."""
        self.chat_template = ""
        self._script = script
        self._counts: Counter[str] = Counter()

    def get_tokenizer(self) -> "LLM":
        return self

    def apply_chat_template(self, talks: Sequence[Sequence[Mapping[str, str]]], **_: Any) -> list[str]:
        return [talk[-1]["content"] if talk[-1]["role"] == "assistant" else "" for talk in talks]

    def generate(self, prompts: Sequence[str], sampling_params: Any, use_tqdm: bool) -> list[Any]:
        self.num_calls += len(prompts)
        return [self._output(plain(prompt), sampling_params) for prompt in prompts]

    def _output(self, text: str, sampling: Any) -> Any:
        said = ""
        while not said or (not hasattr(sampling, "stop") and not said.endswith(".")):
            before, is_greedy = text + said, sampling.temperature == 0
            entries = self._script[before]
            entry = entries[0 if is_greedy else self._counts[before] % len(entries)]
            self.said_nothing |= bool(before) and entry == "."
            said += entry
            self._counts[before] += not is_greedy
        is_over = said.endswith(".")
        output = SimpleNamespace(
            text=boxed(said.removesuffix(".")), token_ids=(), stop_reason=None if is_over else "\n\n"
        )
        return SimpleNamespace(outputs=[output])


class PRM:
    """A reward model: the score of each step of a text. It remembers what it was asked."""

    def __init__(self, scores: Mapping[str, float]) -> None:
        self.asked: list[list[str]] = []
        self._scores = scores

    def score(self, prompts: Sequence[str], completions: Sequence[Sequence[str]]) -> list[list[list[float]]]:
        texts = [[plain(completion) for completion in each] for each in completions]
        self.asked.append([text for each in texts for text in each])
        return [[self._of_steps(text) for text in each] for each in texts]

    def _of_steps(self, text: str) -> list[float]:
        return [self._scores[text[:end]] for end in range(1, len(text) + 1) or (0,)]


def boxed(text: str) -> str:
    return text.replace(BOX, "\\boxed{")


def plain(text: str) -> str:
    return text.replace("\\boxed{", BOX)


def modules(*names: str, absent: tuple[str, ...] = ("sal.utils.math",)) -> list[Any]:
    root = source("RAMIFY_SEARCH_AND_LEARN", "huggingface/search-and-learn", "src/sal/search/beam_search.py")
    with imports(root / "src", absent=(*ABSENT, *absent)) as get:
        found = [get(name) for name in names]
    for module in found:
        if hasattr(module, "SamplingParams"):
            module.SamplingParams = SimpleNamespace
        if hasattr(module, "tqdm"):
            module.tqdm = lambda items, desc: items
    return found


def original_beam() -> Callable[[Given], Mapping[str, object]]:
    config, module = modules("sal.config", "sal.search.beam_search")

    def played(given: Given) -> Mapping[str, object]:
        llm, prm = LLM(given["script"]), PRM(given["scores"])
        switches = {key: given[key] for key in ("filter_duplicates", "sort_completed")}
        made = config.Config(approach="beam_search", search_batch_size=1, **options(given), **switches)
        found = module.beam_search({"problem": ["?"]}, made, llm, prm)
        return {"levels": prm.asked, **result(module, given, found, llm, prm)}

    return played


def original_dvts() -> Callable[[Given], Mapping[str, object]]:
    config, module = modules("sal.config", "sal.search.diverse_verifier_tree_search")
    search = module._dvts

    def played(given: Given) -> Mapping[str, object]:
        llm, prm, paths = LLM(given["script"]), PRM(given["scores"]), list[list[str]]()

        def watched(*args: Any) -> Any:
            found = search(*args)
            paths.extend(list(accumulate(map(plain, each.history))) for each in found[:: given["beam_width"]])
            return found

        module._dvts = watched
        found = module.dvts({"problem": ["?"]}, config.Config(approach="dvts", **options(given)), llm, prm)
        levels = [[path[min(i, len(path) - 1)] for path in paths] for i in range(max(map(len, paths)))]
        return {"levels": levels, **result(module, given, found, llm, prm)}

    return played


def options(given: Given) -> Mapping[str, object]:
    kept = ("n", "beam_width", "num_iterations", "lookahead")
    return {"agg_strategy": given["agg"], **{key: given[key] for key in kept}}


def result(module: Any, given: Given, found: Mapping[str, Any], llm: LLM, prm: PRM) -> Mapping[str, object]:
    """What a search came to, and what it cost."""
    return {
        "completions": list(map(plain, found["completions"][0])),
        "scores": [module.aggregate_scores(scores, given["agg"]) for scores in found["scores"][0]],
        "pred": plain(found["pred"][0]),
        "num_generate_calls": llm.num_calls,
        "num_scored": sum(map(len, prm.asked)),
        DIFFERS: EMPTY_STEP if llm.said_nothing and given["agg"] == "prod" else "",
    }


def original_votes() -> Callable[[Given], Mapping[str, object]]:
    absent = ("latex2sympy2", "sympy", "sal.utils.qwen_math_parser")
    config, module, math = modules("sal.config", "sal.search.best_of_n", "sal.utils.math", absent=absent)
    math.manager.shutdown()
    math.memoized_canonical_form = str

    def played(given: Given) -> Mapping[str, object]:
        n, scores = len(given["answers"]), [[0.0, score] for score in given["scores"]]
        llm = LLM({"": [f"{answer}." for answer in given["answers"]]})
        prm = SimpleNamespace(score=lambda problems, completions: [scores])
        row = module.best_of_n({"problem": ["?"]}, config.Config(n=n), llm, prm)
        (answers,) = row["completions"]
        each = {f"preds@{n}": answers, f"scores@{n}": given["scores"], f"agg_scores@{n}": given["scores"]}
        ways = {"naive": math.compute_naive_pred, "weighted": math.compute_weighted_pred, "maj": math.compute_maj_pred}
        found = {name: compute(each, n)[f"pred_{name}@{n}"][len("\\boxed{") : -1] for name, compute in ways.items()}
        assert found["naive"] == row["pred"][0]
        return {"best_of_n": row["pred"][0], "majority": found["maj"], "weighted": found["weighted"]}

    return played


def ours_votes(given: Given) -> Mapping[str, object]:
    found = votes.vote(given, "as_published")
    return {name: found[name] for name in ("best_of_n", "majority", "weighted")}


def ours_beam(given: Given) -> Mapping[str, object]:
    return unended(beam.hf_beam({**given, "ties": AS_PUBLISHED.published.ties}, "as_published"))


def ours_dvts(given: Given) -> Mapping[str, object]:
    script = {boxed(text): list(map(boxed, entries)) for text, entries in given["script"].items()}
    scores = {boxed(text): score for text, score in given["scores"].items()}
    return unended(beam.dvts({**given, "script": script, "scores": scores}, "as_published"))


def unended(found: Any) -> Any:
    """What was found, as the script has it, without the ends of sequences in its texts."""
    match found:
        case str():
            return plain(found.removesuffix("."))
        case list():
            return [unended(each) for each in found]
        case dict():
            return {key: unended(value) for key, value in found.items()}
        case _:
            return found
