"""Writes `llms.txt` beside the site: each page's address and title, for programs that read documents."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from sphinx.application import Sphinx


def setup(app: Sphinx) -> Mapping[str, object]:
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}


def write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "llms.txt").write_text("\n".join(lines(app)) + "\n", "utf-8")


def lines(app: Sphinx) -> Iterator[str]:
    """A list of the pages, in the order of their names."""
    yield f"# {app.config.project} {app.config.release}"
    yield ""
    yield "> Rollout trees for language-model agents, for training and for answering."
    yield ""
    for name in sorted(app.env.found_docs):
        yield f"- [{app.env.titles[name].astext()}]({app.builder.get_target_uri(name)})"
