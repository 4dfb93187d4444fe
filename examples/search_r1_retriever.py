"""Chains of Search-R1 over a corpus of your own, searched by its HTTP protocol. Needs no model and no network.

    python examples/search_r1_retriever.py

A corpus in Search-R1's layout becomes an index, the index is served on loopback, and ten chains ask it for two
questions at once: their searches go out as a few requests. Put `engine__name` and `engine__model` in place of the
reader below and `tools.use.search.options.base_url` in place of the server's, and it is a real run.
"""

import asyncio
import json
import tempfile
from pathlib import Path

from rich.console import Console

import ramify
from ramify.cli.draw import tree_view
from ramify.testing import Scripted, ScriptedTurn
from ramify.tools.corpus import Corpus
from ramify.tools.retriever_server import RetrieverServer
from ramify.tools.search_index import build_index, open_index

CORPUS = [
    {"id": "0", "contents": "Owl\nThe owl is the bird of Athena."},
    {"id": "1", "contents": "Athena\nAthena was born from the head of Zeus, king of the gods."},
    {"id": "2", "contents": "Zeus\nZeus was a son of Kronos."},
]
QUESTIONS = [
    {"question": "Who is the father of the goddess whose bird is the owl?", "answer": "Zeus"},
    {"question": "Who is the father of Zeus?", "answer": "Kronos"},
]


def reader(turn: ScriptedTurn) -> str:
    """Search until a passage names a father, then answer; some chains guess at once."""
    if "father of Zeus?" in turn.context:
        return "<answer>Kronos</answer>" if "son of" in turn.context else "<search>Zeus son</search>"
    if "head of Zeus" in turn.context:
        return "Born from his head. <answer>Zeus</answer>"
    if "bird of Athena" in turn.context:
        return "It is Athena. <search>Athena born</search>"
    return "<answer>Poseidon</answer>" if turn.seed % 3 == 0 else "Whose bird is it? <search>owl bird goddess</search>"


def written(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


async def main(folder: Path) -> ramify.Rollout:
    corpus = written(folder / "corpus.jsonl", CORPUS)
    questions = written(folder / "questions.jsonl", QUESTIONS)
    build_index(folder / "index", Corpus(corpus).passages())
    async with RetrieverServer(open_index(folder / "index"), top_k=1) as server:
        return await ramify.rollout(
            preset="search_r1",
            engine=Scripted(reader),
            prompts=len(QUESTIONS),
            data__path=str(questions),
            data__answer="answer",
            format="search_r1",
            tools__use={"search": {"kind": "retriever", "options": {"base_url": server.url, "top_k": 1}}},
            growth__max_response_tokens=2000,
            growth__max_turns=3,
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        done = asyncio.run(main(Path(name)))
    console = Console(width=160)
    for tree in done.trees:
        console.print(tree_view(tree))
    console.print(
        f"{done.report.leaves} chains, {done.report.tool_calls} searches, mean reward {done.report.mean_reward}"
    )
