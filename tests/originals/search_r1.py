"""PeterGriffinJin/Search-R1: `LLMGenerationManager.run_llm_loop` on scripted replies and found documents.

Both sides return their batch as it is trained: ids, masks and figures of every path. A scenario in which the loop does
otherwise than the library, as docs/methods/chains.md says, is counted apart, and compared as `DIFFERENCES` says.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from tests.originals.replies import WORDS, engine, generated, words
from tests.originals.sources import imports, source, torch_module
from tests.runner.parts import Small

from ramify.core.codec import ByteCodec, Codec
from ramify.core.format import ToolAction
from ramify.core.problem import Problem
from ramify.engines.shipped import folder_of
from ramify.engines.tokenizer import TokenizerFile
from ramify.formats.search_r1 import SEARCH_R1
from ramify.rows.row import Row
from ramify.rows.search_r1 import batch
from ramify.runner.library import Rollout, rollout
from ramify.testing.clock import run_virtual
from ramify.testing.scripts import Speech
from ramify.tools.passages import Hit, Passage
from ramify.tools.search import Search

Given = Mapping[str, Any]
Path = dict[str, Any]
PAD_ID = 100_000
"""No id of a codec."""
BYTES = ByteCodec(is_exact=True)
UNLIMITED = 1_000_000
MARK = "~"
"""Stands where what is said is read otherwise."""

FORMS: Mapping[str, Callable[[random.Random], str]] = {
    "search": lambda rng: f"<search>{words(rng, 1, 4)}</search>",
    "empty search": lambda rng: f"<search>{' ' * rng.randint(0, 2)}</search>",
    "answer": lambda rng: f"<answer>{words(rng, 0, 4)}</answer>",
    "only closed": lambda rng: rng.choice(["</search>", "</answer>"]),
    "crossed": lambda rng: rng.choice(["<search>{}</answer>", "<answer>{}</search>"]).format(words(rng, 0, 2)),
    "answered twice": lambda rng: f"<answer>{words(rng, 0, 2)}<answer>{words(rng, 0, 2)}</answer>",
    "answer in a search": lambda rng: f"<search>{words(rng, 0, 2)}<answer>{words(rng, 0, 2)}</answer>",
    "search in an answer": lambda rng: f"<answer>{words(rng, 0, 2)}<search>{words(rng, 1, 2)}</search>",
    "endless": lambda rng: words(rng, 200, 200),
}
"""What a turn may hold, read alike by both."""
SEARCHES = frozenset({"search", "empty search", "search in an answer"})
ENDED: Mapping[str, Callable[[random.Random], str]] = {
    "ended": lambda rng: words(rng, 1, 3),
    "cut characters": lambda rng: "数" * 200,
}
READ_OTHERWISE: Mapping[str, Callable[[random.Random], str]] = {
    "first pair": lambda rng: f"{MARK}<search>{words(rng, 1, 2)}<search>{words(rng, 1, 2)}</search>",
    "answer before a search": lambda rng: f"{MARK}<answer>{words(rng, 0, 2)}</answer> <search>a</search>",
    "closed before a search": lambda rng: f"{MARK}</answer> <search>{words(rng, 1, 2)}</search>",
    "crossed before a search": lambda rng: f"{MARK}<search>{words(rng, 1, 2)}</answer></search>",
}
DIFFERENCES: Mapping[str, str] = {
    "forced": "but for the count of a search in the forced last turn",
    "encoded": "its turns encoded again, without end tokens",
    "read": "up to a turn in which tags are paired otherwise",
    "context": "up to a full context",
    "start": "its prompts cut at their left",
}
"""Kind of a scenario -> how its paths are compared."""


def scenario(rng: random.Random) -> Given:
    kind = rng.choice(["", "", "", "", *DIFFERENCES])
    forms = rng.sample(list(FORMS), rng.randint(1, len(FORMS)))
    if kind == "forced":
        forms = [*forms, "search"]
    forms += {"encoded": list(ENDED), "read": list(READ_OTHERWISE)}.get(kind, [])
    return {
        "but": DIFFERENCES.get(kind, ""),
        "kind": kind,
        "seed": rng.random(),
        "codec": rng.choice(["bytes", "shipped"]) if kind == "encoded" else "bytes",
        "prompts": [f"{words(rng, 1, 8, WORDS)} {number}" for number in range(rng.randint(1, 4))],
        "copies": rng.randint(1, 4),
        "gpus": rng.randint(1, 4),
        "max_turns": rng.randint(0, 4),
        "max_tokens": rng.choice([30, 60, 200]),
        "max_observation_tokens": rng.choice([20, 150, 400]),
        "max_context": rng.choice([300, 500, 800]) if kind == "context" else UNLIMITED,
        "max_start": rng.choice([5, 20, 50]) if kind == "start" else UNLIMITED,
        "topk": rng.randint(1, 3),
        "forms": forms,
    }


def codec_of(given: Given) -> Codec:
    return BYTES if given["codec"] == "bytes" else TokenizerFile(folder_of("herds") / "tokenizer.json")


def saying(given: Given) -> Callable[[random.Random, str], Speech]:
    forms = {**FORMS, **ENDED, **READ_OTHERWISE}

    def said(rng: random.Random, context: str) -> Speech:
        num_turns = context.count("<inform") + context.count("My previous ac")
        is_last = num_turns >= given["max_turns"]
        allowed = [form for form in given["forms"] if given["kind"] == "forced" or not (is_last and form in SEARCHES)]
        form = rng.choice(allowed or ["only closed"])
        around = ["", words(rng, 1, 6)]
        text = rng.choice(around) + forms[form](rng)
        return Speech(text if form in ENDED else text + rng.choice(around) + words(rng, 200, 200))

    return said


def found(given: Given, query: str) -> list[str]:
    """Documents about a query."""
    rng = random.Random(f"{given['seed']} {query}")
    around = ["", "\n", " "]
    number = rng.randint(0, given["topk"])
    return [rng.choice(around) + words(rng, 0, 9, WORDS) + rng.choice(around) for _ in range(number)]


# -- the original ------------------------------------------------------------------------------------------------------


@dataclass
class Carrier:
    """Stands for verl's container of tensors."""

    batch: dict[str, Any]
    meta_info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, tensors: dict[str, Any]) -> "Carrier":
        return cls(tensors)


class Tokenizer:
    """A codec of the library, called as the tokenizers of `transformers` are. It pads on the right; the end token and
    the padding have no text."""

    pad_token_id = PAD_ID
    pad_token = "<pad>"

    def __init__(self, torch: Any, codec: Codec) -> None:
        self._torch, self._codec = torch, codec

    def __call__(self, texts: Sequence[str], **how: object) -> dict[str, Any]:
        return {"input_ids": padded(self._torch, [self._codec.encode(text) for text in texts])}

    def batch_decode(self, rows: Any, *, skip_special_tokens: bool) -> list[str]:
        return [self._codec.decode(i for i in row if i not in (PAD_ID, self._codec.eos_id)) for row in rows.tolist()]


def padded(torch: Any, rows: Sequence[Sequence[int]], *, on_left: bool = False) -> Any:
    width = max(map(len, rows))
    fill = [[PAD_ID] * (width - len(row)) for row in rows]
    return torch.tensor([[*f, *row] if on_left else [*row, *f] for row, f in zip(rows, fill, strict=True)]).long()


class Workers:
    """Samples for the original's loop: it names no stop words, so a turn goes on to its end token or its limit."""

    def __init__(self, torch: Any, given: Given) -> None:
        self._torch, self._max_tokens = torch, given["max_tokens"]
        self._engine = engine(given["seed"], saying(given), codec_of(given))

    def generate_sequences(self, rows: Carrier) -> Carrier:
        ids, mask = rows.batch["input_ids"].tolist(), rows.batch["attention_mask"].tolist()
        contexts = [[i for i, m in zip(*row, strict=True) if m] for row in zip(ids, mask, strict=True)]
        said = [g.ids.tolist() for g in generated(self._engine, contexts, max_tokens=self._max_tokens)]
        return Carrier({"responses": padded(self._torch, said)})


class Server:
    """Answers `requests.post` as the retriever does."""

    def __init__(self, given: Given) -> None:
        self._given = given

    def post(self, url: str, json: Mapping[str, Any]) -> "Server":
        self._found = [[{"document": {"contents": text}} for text in found(self._given, q)] for q in json["queries"]]
        return self

    def json(self) -> Mapping[str, Any]:
        return {"result": self._found}


def original() -> Callable[[Given], Mapping[str, object]]:
    root = source("RAMIFY_SEARCH_R1", "PeterGriffinJin/Search-R1", "search_r1/llm_agent/generation.py")
    torch = torch_module()
    with imports(root, absent=("verl", "verl.utils", "verl.utils.tracking", "requests")) as get:
        module = get("search_r1.llm_agent.generation")
    module.DataProto = Carrier
    return lambda given: {"paths": [compared(path, given) for path in _played(torch, module, given)]}


def _played(torch: Any, module: Any, given: Given) -> list[Path]:
    module.requests = Server(given)
    codec = codec_of(given)
    config = module.GenerationConfig(
        max_turns=given["max_turns"],
        max_start_length=given["max_start"],
        max_prompt_length=given["max_context"],
        max_response_length=given["max_tokens"],
        max_obs_length=given["max_observation_tokens"],
        num_gpus=given["gpus"],
        topk=given["topk"],
    )
    manager = module.LLMGenerationManager(Tokenizer(torch, codec), Workers(torch, given), config)
    prompts = [codec.encode(prompt) for prompt in given["prompts"] for _ in range(given["copies"])]
    ids = padded(torch, prompts, on_left=True)
    mask = manager.tensor_fn.create_attention_mask(ids)
    positions = manager.tensor_fn.create_position_ids(mask)
    out = manager.run_llm_loop(Carrier({"input_ids": ids, "attention_mask": mask, "position_ids": positions}), ids)
    return _paths(out.batch, out.meta_info)


def _paths(tensors: Mapping[str, Any], figures: Mapping[str, Any]) -> list[Path]:
    """Ids, mask and figures of every row, without the padding."""
    width = tensors["prompts"].shape[1]
    made = [tensors[name].tolist() for name in ("input_ids", "attention_mask", "info_mask", "position_ids")]
    kept = [[column for column in zip(*row, strict=True) if column[1]] for row in zip(*made, strict=True)]
    return [
        {
            "ids": [i for i, _, _, _ in row],
            "is_trained": [info for _, _, info, _ in row],
            "positions": [position for _, _, _, position in row],
            "num_prompt": sum(made[1][number][:width]),
            "figures": {name: int(values[number]) for name, values in figures.items()},
        }
        for number, row in enumerate(kept)
    ]


# -- ours --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Documents:
    """An index that finds the scenario's documents."""

    given: Given
    is_blocking: bool = False
    num_passages: int = 0

    def search(self, query: str, top_k: int) -> list[Hit]:
        parts = [text.partition("\n") for text in found(self.given, query)]
        return [Hit(Passage(text, title), None) for title, _, text in parts]

    def close(self) -> None: ...


def ours(given: Given) -> Mapping[str, object]:
    codec = codec_of(given)
    task = Small(
        format=replace(SEARCH_R1, template="{question}"),
        tools=(Search(lambda problem: Documents(given), top_k=given["topk"]),),
    )
    result = run_virtual(
        rollout(
            [Problem(f"p{i}", prompt) for i, prompt in enumerate(given["prompts"])],
            preset="search_r1_as_published",
            engine=engine(given["seed"], saying(given), codec, context_length=given["max_context"]),
            task=task,
            strategy__options={"n": given["copies"]},
            growth__max_turns=given["max_turns"] + 1,
            growth__max_response_tokens=UNLIMITED,
            growth__max_observation_tokens=given["max_observation_tokens"],
            actions__policy__max_tokens=given["max_tokens"],
        )
    )
    made = batch(_in_order(result), pad_id=PAD_ID)
    paths = _paths(made.tensors, made.meta_info)
    if given["kind"] == "encoded":
        paths = [_encoded_again(path, codec) for path in paths]
    if given["kind"] == "start":
        paths = [_cut_left(path, given["max_start"]) for path in paths]
    if given["kind"] == "forced":
        paths = [_with_forced(path, codec, given) for path in paths]
    return {"paths": [compared(path, given) for path in paths]}


def _in_order(result: Rollout) -> list[Row]:
    """The rows, by problem and by copy."""
    trees = {tree.problem.uid: tree for tree in result.trees}
    return sorted(result.rows(), key=lambda row: (row.uid, trees[row.uid].index(trees[row.uid].path(row.leaf_id)[1])))


# -- known differences -------------------------------------------------------------------------------------------------


def compared(path: Path, given: Given) -> Path:
    """The path as far as both must be the same; one that is cut has no figures."""
    limit = given["max_context"]
    if given["kind"] == "read":
        text = codec_of(given).decode(path["ids"])
        limit = len(codec_of(given).encode(text[: text.index(MARK)])) if MARK in text else UNLIMITED
    if len(path["ids"]) < limit:
        return path
    cut = {name: path[name][:limit] for name in ("ids", "is_trained", "positions")}
    return {**path, **cut, "figures": {}}


def _encoded_again(path: Path, codec: Codec) -> Path:
    """What the model said, without end tokens, as the codec encodes its text."""
    ids, mask = path["ids"][: path["num_prompt"]], path["is_trained"][: path["num_prompt"]]
    for is_trained, run in _runs(path):
        kept = codec.encode(codec.decode(i for i in run if i != codec.eos_id)) if is_trained else run
        ids, mask = ids + kept, mask + [is_trained] * len(kept)
    return {**path, "ids": ids, "is_trained": mask, "positions": list(range(len(ids)))}


def _cut_left(path: Path, width: int) -> Path:
    """The path behind a prompt of which the last tokens are left."""
    num_cut = max(0, path["num_prompt"] - width)
    cut = {name: path[name][num_cut:] for name in ("ids", "is_trained")}
    return {**path, **cut, "num_prompt": path["num_prompt"] - num_cut, "positions": list(range(len(cut["ids"])))}


def _with_forced(path: Path, codec: Codec, given: Given) -> Path:
    """The figures with the search that the forced last turn asked for."""
    figures = path["figures"]
    is_search = isinstance(SEARCH_R1.read(codec.decode(_runs(path)[-1][1])), ToolAction)
    is_forced = is_search and figures["turns_stats"] > given["max_turns"]
    counted = {name: figures[name] + is_forced for name in ("valid_action_stats", "valid_search_stats")}
    return {**path, "figures": {**figures, **counted}}


def _runs(path: Path) -> list[tuple[int, list[int]]]:
    """The response, as runs of tokens that are trained (1) or not (0)."""
    tokens = list(zip(path["is_trained"], path["ids"], strict=True))[path["num_prompt"] :]
    return [(is_trained, [i for _, i in run]) for is_trained, run in groupby(tokens, key=lambda token: token[0])]
