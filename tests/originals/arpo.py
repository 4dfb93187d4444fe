"""dongguanting/ARPO: `vLLMRolloutWithTools.generate_sequences` on scripted replies, tools and random numbers.

Both sides return every path of a prompt in the order in which they were begun: which path it left and when, the entropy
of each of its steps, its ids and its mask; and how many random numbers the prompt took. A scenario in which the rollout
does otherwise than the library, as docs/methods/arpo.md says, is counted apart, and compared as `DIFFERENCES` says.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from types import SimpleNamespace
from typing import Any

from tests.originals.fed import FedOnline
from tests.originals.replies import WORDS, engine, generated, words
from tests.originals.sources import imports, source, torch_module
from tests.runner.parts import Small
from tests.strategies.world import ListDraws

from ramify.config.presets import preset
from ramify.core.codec import ByteCodec
from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.core.tool import Branching, ToolResult
from ramify.core.tree import ROOT, Tree
from ramify.formats.arpo import AS_PUBLISHED
from ramify.rows.row import Row
from ramify.runner.library import rollout
from ramify.strategies.parts.entropy import STEP_ENTROPY
from ramify.testing.clock import run_virtual
from ramify.testing.scripts import Speech

Given = Mapping[str, Any]
Path = dict[str, Any]
CODEC = ByteCodec(is_exact=True)
PAD_ID = 100_000
"""No id of the codec."""
FORMAT = replace(AS_PUBLISHED, template="{question}")
BEGIN = 300
"""The begin-of-text token of a tokenizer that puts one before every text."""
MARK = "~"
"""Stands where a call is read or answered otherwise."""
TAGS = ("search", "python")
TOPK = (None, (-0.5, -1.5), (-0.01,), (0.0,), (-1.0, -2.0, -3.0, -4.0))
"""Logprobs of the likeliest tokens at each token of a turn; None = they differ from token to token, by its position."""
OPTIONS = ("n", "initial_rollouts", "beam_size", "branch_probability", "entropy_weight")

FORMS: Mapping[str, Callable[[random.Random], str]] = {
    "call": lambda rng: _call(rng, words(rng, 1, 4)),
    "short call": lambda rng: f"<search>{rng.randrange(100, 1000)}</search>",
    "opened twice": lambda rng: _call(rng, f"{words(rng, 1, 2)}<{rng.choice(TAGS)}>{words(rng, 1, 2)}"),
    "call behind an answer": lambda rng: f"<answer>{words(rng, 0, 2)}</answer>" + _call(rng, words(rng, 1, 2)),
    "empty call": lambda rng: _call(rng, " " * rng.randint(0, 2)),
    "answer": lambda rng: f"<answer>{words(rng, 0, 4)}</answer>",
    "nothing": lambda rng: "",
    "endless": lambda rng: words(rng, 300, 300),
}
"""What a turn may hold, read alike by both."""
CLOSED: Mapping[str, Callable[[random.Random], str]] = {
    "only closed": lambda rng: f"</{rng.choice(TAGS)}>",
    "crossed": lambda rng: f"<search>{words(rng, 0, 2)}</python>",
}
DIFFERENCES: Mapping[str, str] = {
    "limit": "but for the mask of the forced end token",
    "closed": "up to a call whose opening tag stands in an earlier turn",
    "empty": "up to a result that was empty at the first try",
    "begins": "without begin-of-text tokens of results",
}
"""Kind of a scenario -> how its paths are compared."""
CUTS = {"closed": MARK, "empty": rf"{MARK}|Tool\("}
"""Kind -> what begins where a call is read, or answered, otherwise. No path of such a scenario forks."""
RESULTS = ("text", "text", "empty", "raises", "at last")


def _call(rng: random.Random, content: str) -> str:
    tag = rng.choice(TAGS)
    return f"<{tag}>{content}</{tag}>"


def scenario(rng: random.Random) -> Given:
    kind = rng.choice(["", "", "", "", *DIFFERENCES])
    forms = rng.sample(list(FORMS), rng.randint(1, len(FORMS)))
    n, bp = rng.randint(1, 8), rng.choice([-0.5, 0.0, 0.3, 0.5, 0.8, 1.0, 1.5])
    prompts = [f"{number} {words(rng, 1, 8, WORDS)}" for number in range(rng.randint(1, 4))]
    batches = [prompts] if rng.random() < 0.7 else [[prompt] for prompt in prompts[:2]]
    is_long = kind in ("begins", "empty") or len(batches) > 1
    if is_long:
        forms = [form for form in forms if form != "endless"]
    return {
        "but": DIFFERENCES.get(kind, ""),
        "kind": kind,
        "seed": rng.random(),
        "batches": batches,
        "n": n,
        "initial_rollouts": n if kind in CUTS else rng.randint(1, n + 1),
        "beam_size": 1 if kind in CUTS else rng.choice([1, 2, 2, 2, 3, 4]),
        "branch_probability": bp,
        "entropy_weight": rng.choice([0.0, 0.2, 0.5, -0.5]),
        "uniforms": rng.choice([[], [bp], [0.0, 0.5, 0.999]]),
        "max_calls": rng.randint(0, 3) if kind == "limit" else 100,
        "max_tokens": 4000 if is_long else rng.choice([1500, 1500, 400, 150, 20]),
        "num_tries": rng.randint(1, 3),
        "forms": [*forms, *["call"] * 3, *(CLOSED if kind == "closed" else ())],
        "results": ("text", "at last", "empty at first") if kind == "empty" else RESULTS,
    }


def saying(given: Given) -> Callable[[random.Random, str], Speech]:
    forms = {**FORMS, **CLOSED}

    def said(rng: random.Random, context: str) -> Speech:
        """Paths become likelier to end as they grow longer."""
        num_turns = context.count("</result>")
        form = rng.choice(given["forms"]) if num_turns < 4 or rng.random() < 0.5 else "answer"
        mark = MARK if form in CLOSED and _opened(context) else ""
        topk = rng.choice(TOPK[given["kind"] == "begins" :])
        return Speech(mark + rng.choice(["", words(rng, 1, 30)]) + forms[form](rng), topk=topk)

    return said


def _opened(context: str) -> bool:
    return any(f"<{tag}>" in context for tag in TAGS)


def uniforms(given: Given, prompt: str, number: int) -> list[float]:
    """The random numbers of a prompt."""
    rng = random.Random(f"{given['seed']} {prompt} {number}")
    return [rng.choice([*given["uniforms"], rng.random()]) for _ in range(200)]


class Tries:
    """Tools: what they return is a function of the content; some fail at first, or always."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._num_tries: Counter[str] = Counter()

    def result(self, tag: str, content: str) -> str:
        """Raises `RuntimeError`."""
        rng = random.Random(f"{self._given['seed']} {tag} {content}")
        self._num_tries[content] += 1
        kind, text = rng.choice(self._given["results"]), words(rng, 1, 20, WORDS)
        is_first = self._num_tries[content] == 1
        if kind == "raises" or (kind == "at last" and is_first and self._given["num_tries"] > 1):
            raise RuntimeError("down")
        if kind == "empty at first":
            return "" if is_first else MARK + text
        return "" if kind == "empty" else text


# -- the original ------------------------------------------------------------------------------------------------------


class Settings(dict[str, Any]):
    """A configuration, read by key or by attribute."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Tokenizer:
    """The byte codec, called as the tokenizers of `transformers` are."""

    pad_token_id = PAD_ID
    eos_token_id = CODEC.eos_id

    def __init__(self, given: Given) -> None:
        self._begin = [BEGIN] if given["kind"] == "begins" else []

    def get_vocab(self) -> dict[str, int]:
        return {str(number): number for number in range(CODEC.vocab_size)}

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return CODEC.decode(ids)

    def encode(self, text: str) -> list[int]:
        return self._begin + CODEC.encode(text)


@dataclass
class Prompts:
    """Stands for verl's container of tensors."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)


class Watched(dict[int, float]):
    """The entropies that paths are compared with. The rollout asks for one whenever it looks at a path."""

    def __init__(self, record: "Record") -> None:
        super().__init__()
        self._record = record

    def __contains__(self, index: object) -> bool:
        self._record.sampled(index)
        return super().__contains__(index)

    def get(self, index: int, default: float = 0.0) -> float:  # type: ignore[override]
        self._record.deciding = index
        return super().get(index, default)


class Record:
    """What the rollout does with a batch: its engine, its random numbers, and the paths that they tell of."""

    def __init__(self, given: Given) -> None:
        self._engine = engine(given["seed"], saying(given), CODEC)
        self._given = given
        self.deciding = 0
        self.entropy = 0.0

    def begin(self, prompts: Sequence[str], number: int) -> None:
        self.prompts = {tuple(CODEC.encode(prompt)): prompt for prompt in prompts}
        self.draws = {prompt: ListDraws(uniforms(self._given, prompt, number)) for prompt in prompts}
        self.paths: dict[int, Path] = {}

    def generate(self, prompt_token_ids: Any, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        contexts = [tuple(ids) for ids in prompt_token_ids]
        how = {"max_tokens": sampling_params.max_tokens, "stops": sampling_params.stop}
        self._left = list(reversed(contexts))
        self._met: dict[tuple[int, ...], int] = {}
        return [_output(g) for g in generated(self._engine, contexts, topk=10, **how)]

    def sampled(self, index: Any) -> None:
        """The path `index` has made a step; a new one left the path that had the same context."""
        context = self._left.pop()
        if index not in self.paths:
            prompt = next(prompt for ids, prompt in self.prompts.items() if context[: len(ids)] == ids)
            origin = None if context in self.prompts else self._met[context]
            left = None if origin is None else (origin, len(self.paths[origin]["entropies"]) - 1)
            self.paths[index] = {"prompt": prompt, "left": left, "entropies": []}
        self._met.setdefault(context, index)
        self.paths[index]["entropies"].append(self.entropy)

    def random(self) -> float:
        return self.draws[self.paths[self.deciding]["prompt"]].random()


def _output(generation: Any) -> Any:
    """A generation as vLLM returns it."""
    kind, word = generation.finish.kind, generation.finish.matched
    logprobs = [{i: SimpleNamespace(logprob=float(p)) for i, p in enumerate(top)} for top in generation.topk]
    finish = "length" if kind == "length" else "stop"
    stop = word if kind == "stop" else None
    made = SimpleNamespace(token_ids=generation.ids.tolist(), logprobs=logprobs, finish_reason=finish, stop_reason=stop)
    return SimpleNamespace(outputs=[made])


HOLLOW = (
    *("verl", "verl.utils", "verl.utils.debug", "verl.third_party", "verl.third_party.vllm", "verl.workers"),
    *("verl.workers.rollout", "verl.workers.rollout.vllm_rollout", "verl.workers.rollout.tools"),
)
ABSENT = (
    *("omegaconf", "tensordict", "transformers", "vllm", "vllm.distributed", "vllm.lora", "vllm.lora.request"),
    *("vllm.worker", "vllm.worker.worker_base"),
)


def original() -> Callable[[Given], Mapping[str, object]]:
    inside = "ARPO/verl_arpo_entropy/verl/workers/rollout/vllm_rollout/vllm_rollout_with_tools.py"
    root = source("RAMIFY_ARPO", "dongguanting/ARPO", inside)
    torch = torch_module()
    with imports(root / "ARPO" / "verl_arpo_entropy", absent=(*HOLLOW, *ABSENT)) as get:
        module = get("verl.workers.rollout.vllm_rollout.vllm_rollout_with_tools")
        base = get("verl.workers.rollout.vllm_rollout.vllm_rollout_spmd").vLLMRollout
    base.__init__ = _started
    module.OmegaConf = SimpleNamespace(create=Settings)
    module.TensorDict = lambda tensors, batch_size: tensors
    module.DataProto = Prompts
    return lambda given: _played(torch, module, given)


def _started(self: Any, model_path: str, config: Any, tokenizer: Any, model_hf_config: Any) -> None:
    """In place of the start of vLLM."""
    self.config, self.pad_token_id = config, tokenizer.pad_token_id
    self.sampling_params = SimpleNamespace(n=config.n, stop=None, max_tokens=0, logprobs=0, detokenize=False)


def _played(torch: Any, module: Any, given: Given) -> Mapping[str, object]:
    tools = Settings(call_limit=given["max_calls"], retry_count=given["num_tries"], max_workers=1)
    options = {name: given[name] for name in OPTIONS}
    config = Settings(response_length=given["max_tokens"], tools=tools, free_cache_engine=False, **options)
    rollouts = module.vLLMRolloutWithTools("", config, Tokenizer(given), None)
    tries = Tries(given)
    rollouts.tools = {tag: SimpleNamespace(trigger_tag=tag, execute=_execute(tries, tag)) for tag in TAGS}
    rollouts.stop_sequences = [f"</{tag}>" for tag in TAGS]
    record = Record(given)
    rollouts.inference_engine = module.random = record
    rollouts.initial_entropy_dict = Watched(record)
    rollouts._calc_entropy = _noting(rollouts._calc_entropy, record)
    return {"batches": [_batch(torch, rollouts, record, given, number) for number in range(len(given["batches"]))]}


def _execute(tries: Tries, tag: str) -> Callable[[str], str]:
    return lambda content: tries.result(tag, content)


def _noting(entropy_of: Callable[[Any], float], record: Record) -> Callable[[Any], float]:
    def noted(logprobs: Any) -> float:
        value = entropy_of(logprobs)
        record.entropy = value / math.log(CODEC.vocab_size)
        return value

    return noted


def _batch(torch: Any, rollouts: Any, record: Record, given: Given, number: int) -> list[Mapping[str, object]]:
    prompts = given["batches"][number]
    record.begin(prompts, number)
    rows = [CODEC.encode(prompt) for prompt in prompts]
    width = max(map(len, rows))
    ids = torch.tensor([[PAD_ID] * (width - len(row)) + row for row in rows])
    mask = (ids != PAD_ID).long()
    out = rollouts.generate_sequences(
        Prompts({"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1) * mask})
    )
    made = [out.batch[name].tolist() for name in ("responses", "loss_mask")]
    found: list[Mapping[str, object]] = []
    for position, prompt in enumerate(prompts):
        indices = sorted(index for index, path in record.paths.items() if path["prompt"] == prompt)
        first = position * given["n"]
        samples = [tuple(row[first + i] for row in made) for i in range(given["n"])]
        paths = [_path(record.paths[index], indices, *sample) for index, sample in zip(indices, samples, strict=True)]
        found.append({"paths": [compared(path, given) for path in paths], "draws": record.draws[prompt].num_uniforms})
    return found


def _path(path: Path, indices: Sequence[int], ids: Sequence[int], mask: Sequence[int]) -> Path:
    """A path of the record and its sample, without the padding."""
    left = path["left"] and [indices.index(path["left"][0]), path["left"][1]]
    kept = [(i, m) for i, m in zip(ids, mask, strict=True) if i != PAD_ID]
    return {
        "left": left,
        "entropies": path["entropies"],
        "ids": [i for i, _ in kept],
        "is_trained": [m for _, m in kept],
    }


# -- ours --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScriptedTool:
    """One of the scenario's tools. It is its own session."""

    name: str
    tries: Tries
    branching: Branching = "share"

    async def open(self, problem: Problem) -> "ScriptedTool":
        return self

    async def call(self, arguments: str) -> ToolResult:
        try:
            return ToolResult(self.tries.result(self.name, arguments))
        except RuntimeError as error:
            raise ToolError("down") from error

    async def fork(self) -> "ScriptedTool":
        return self

    async def close(self) -> None: ...


def ours(given: Given) -> Mapping[str, object]:
    """Every prompt is a run of its own; a batch of one prompt is compared with what the one before it left behind."""
    tries, model = Tries(given), engine(given["seed"], saying(given), CODEC)
    batches: list[list[Mapping[str, object]]] = []
    stale: list[tuple[int, float]] = []
    for number, prompts in enumerate(given["batches"]):
        made = [_tree(given, prompt, number, model, tries, stale) for prompt in prompts]
        stale = [(i, path["entropies"][0]) for i, path in enumerate(made[0][0])]
        batches.append([{"paths": [compared(path, given) for path in paths], "draws": draws} for paths, draws in made])
    return {"batches": batches}


def _tree(
    given: Given, prompt: str, number: int, model: Any, tries: Tries, stale: Sequence[tuple[int, float]]
) -> tuple[list[Path], int]:
    """The paths of a prompt, and how many random numbers they took."""
    FedOnline.feed(uniforms(given, prompt, number))
    options = preset("arpo_as_published").values["strategy"]["options"]
    options |= {name: given[name] for name in OPTIONS}
    options["published"] = {**options["published"], "stale_baselines": stale}
    result = run_virtual(
        rollout(
            [Problem("p", prompt)],
            preset="arpo_as_published",
            engine=model,
            task=Small(format=FORMAT, tools=[ScriptedTool(tag, tries) for tag in TAGS]),
            strategy=FedOnline,
            growth__max_response_tokens=given["max_tokens"],
            growth__max_tool_calls=given["max_calls"],
            tools__max_retries=given["num_tries"] - 1,
            strategy__options=options,
        )
    )
    return _paths(result.trees[0], result.rows()), FedOnline.num_drawn()


def _paths(tree: Tree, rows: Sequence[Row]) -> list[Path]:
    """The paths by the decisions that began them. A first child goes on with its parent's path."""
    begun = [node for node in range(1, len(tree)) if tree.path(node)[-2] == ROOT or tree.index(node)]
    begun.sort(key=lambda node: (tree.forks.index(tree.fork(node)), tree.index(node)))
    chains = [_chain(tree, node) for node in begun]
    place = {node: [number, step] for number, chain in enumerate(chains) for step, node in enumerate(chain, 1)}
    by_leaf = {row.leaf_id: row for row in rows}
    paths: list[Path] = []
    for chain in chains:
        row = by_leaf[chain[-1]]
        paths.append(
            {
                "left": place.get(tree.path(chain[0])[-2]),
                "entropies": [tree.measure(node, STEP_ENTROPY) for node in chain],
                "ids": row.ids[row.num_prompt :].tolist(),
                "is_trained": (row.weights[row.num_prompt :] > 0).astype(int).tolist(),
                "stop": row.stop,
            }
        )
    return paths


def _chain(tree: Tree, node: int) -> list[int]:
    """The nodes of the path that begins with `node`."""
    chain = [node]
    while first := [child for child in tree.children(chain[-1]) if not tree.index(child)]:
        chain += first
    return chain


# -- known differences -------------------------------------------------------------------------------------------------


def compared(path: Path, given: Given) -> Path:
    """The path as far as both must be the same."""
    found = {name: path[name] for name in ("left", "entropies", "ids", "is_trained")}
    if len(path["ids"]) == given["max_tokens"]:
        # No path forks here, and a step of the original may have begun with more tokens than it kept.
        found["entropies"] = found["entropies"][:-1]
    if path.get("stop") == "tool_limit" and given["kind"] == "limit":
        found["is_trained"] = [*found["is_trained"][:-1], 1]
    kept = [i != BEGIN for i in found["ids"]]
    cut = re.search(CUTS.get(given["kind"], "(?!)"), CODEC.decode(path["ids"]))
    if cut is not None:
        before = cut.string[: cut.start()]
        num_kept = len(CODEC.encode(before))
        kept = [is_kept and i < num_kept for i, is_kept in enumerate(kept)]
        found["entropies"] = found["entropies"][: before.count("</result>")]
    return found | {name: list(compress(found[name], kept)) for name in ("ids", "is_trained")}
