"""Page: the viewer as one HTML text: its modules joined into one script, and documents if it is a file of its own.

Modules stand in `static`. Each becomes a function of its own, so that no name of one meets a name of another: an import
is a line `import { a, b } from "./x.js";`, and an export begins a line. The content security policy allows this script
and this style by their hashes, and nothing else; a page that a server sends may also ask that server.

Documents are packed with gzip and written in base64: no text of a run is markup.
"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec

STATIC: Final = resources.files("ramify.view") / "static"
STYLES: Final = ("style.css", "drawing.css")
MAIN: Final = "main.js"
_IMPORT: Final = re.compile(r'^import \{([\w,\s]+)\} from "\./(\w+\.js)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
_OTHER: Final = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


def live_page() -> tuple[str, str]:
    """The page that a server sends, and its content security policy."""
    return _page((), connect="'self'"), policy(connect="'self'")


def blocks(documents: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """The documents as they stand in a page."""
    return (_block(name, packed(document)) for name, document in documents)


def page_of(blocks: Iterable[str]) -> str:
    """The page with these documents inside."""
    return _page(blocks, connect="'none'")


def packed(document: Any) -> str:
    """A document as it stands in a file. The same document gives the same text."""
    return base64.b64encode(gzip.compress(_as_json(document), compresslevel=6, mtime=0)).decode("ascii")


def _as_json(document: Any) -> bytes:
    """JSON of a document. A tree in memory may hold lone surrogates, which only stand there as escapes."""
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        return json.dumps(document).encode("ascii")


def policy(*, connect: str) -> str:
    """The content security policy of the page."""
    return (
        f"default-src 'none'; script-src '{_hash(script())}'; style-src '{_hash(style())}'; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def modules() -> list[str]:
    """The names of all modules, each behind those that it imports."""
    return _in_order(MAIN, [])


@cache
def style() -> str:
    return "\n".join((STATIC / name).read_text("utf-8") for name in STYLES)


@cache
def script() -> str:
    """All modules as one script, each behind those that it imports."""
    return '"use strict";\nconst modules = {};\n' + "\n".join(map(_as_function, modules()))


def _page(blocks: Iterable[str], *, connect: str) -> str:
    parts = {
        "policy": policy(connect=connect),
        "style": style(),
        "documents": "\n".join(blocks),
        "script": script(),
    }
    template = (STATIC / "page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _block(name: str, text: str) -> str:
    return f'<script type="application/gzip" data-document="{name}">{text}</script>'


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _in_order(name: str, found: list[str]) -> list[str]:
    """The names of a module and of all that it imports; each behind what it imports. Mutates `found`."""
    for _, imported in _IMPORT.findall(_source(name)):
        if imported not in found:
            _in_order(imported, found)
    if name not in found:
        found.append(name)
    return found


def _as_function(name: str) -> str:
    """A module as a function that returns what it exports."""
    source = _source(name)
    exports = _EXPORT.findall(source)
    body = _EXPORT.sub("", _IMPORT.sub(r'const {\1} = modules["\2"];', source))
    if other := _OTHER.search(body):
        raise ValueError(
            f"{name}: {other[0]!r} is no import or export that can be joined; write one name a declaration"
        )
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exports)} }};\n}})();'


@cache
def _source(name: str) -> str:
    return (STATIC / name).read_text("utf-8")
