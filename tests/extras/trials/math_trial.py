r"""The judge `math` grades the answer `\frac12` as equal to the gold answer 0.5, and 2 as different."""

from pathlib import Path

from ramify import rollout_sync
from ramify.testing import Scripted

ANSWERS = {r"\frac12": 1.0, "2": 0.0}

Path("questions.jsonl").write_text('{"question": "Half of one?", "answer": "0.5"}\n', "utf-8")
for answer, reward in ANSWERS.items():
    said = f"<answer>{answer}</answer>"
    grown = rollout_sync(
        preset="chains", engine=Scripted(lambda turn, said=said: said), data__path="questions.jsonl", data__judge="math"
    )
    (tree,) = grown.trees
    assert {tree.reward(leaf) for leaf in tree.leaves()} == {reward}, (answer, tree)
