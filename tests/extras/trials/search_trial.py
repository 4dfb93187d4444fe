"""An index of tantivy is built from a corpus, and finds a passage."""

import json
from pathlib import Path

from console import ramify

from ramify.tools.search_index import open_index

PASSAGES = {"Zeus": "Zeus ruled the sky.", "Owl": "The owl is the bird of Athena."}

lines = [json.dumps({"title": title, "text": text}) for title, text in PASSAGES.items()]
Path("corpus.jsonl").write_text("\n".join(lines), "utf-8")
ramify("index", "corpus.jsonl", "--backend", "tantivy", "--out", "myths.index")
(hit,) = open_index("myths.index").search("a BIRD?", top_k=2)
assert hit.passage.title == "Owl", hit
