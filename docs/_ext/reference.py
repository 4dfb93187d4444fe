"""Writes the pages of `code_pages` into `reference/generated/` before Sphinx reads anything."""

from collections.abc import Mapping
from pathlib import Path

from code_pages import MissingSentence, double_marks, pages
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

GENERATED = "reference/generated"


def setup(app: Sphinx) -> Mapping[str, object]:
    app.connect("builder-inited", write_all)
    app.connect("autodoc-process-docstring", code_marks)
    return {"parallel_read_safe": True}


def write_all(app: Sphinx) -> None:
    """Write every page that is made from the code. A page that did not change keeps its time."""
    try:
        made = pages()
    except MissingSentence as error:
        raise ExtensionError(str(error)) from error
    folder = Path(app.srcdir) / GENERATED
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
    for path in folder.glob("*.md"):
        if path.stem not in made:
            path.unlink()


def code_marks(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings mark code as Markdown does, with one backtick; reStructuredText wants two. Mutates `lines`."""
    lines[:] = map(double_marks, lines)
