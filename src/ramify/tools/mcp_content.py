"""Turns an MCP server's answer into a `ToolResult`: texts, structured content as metadata, and files as attachments.

An image, sound or other file is stored in a folder under the hash of its content, so equal files are stored once. The
model sees its type and size instead. File bytes never enter texts, metadata or ids.
"""

import base64
import hashlib
import json
import mimetypes
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import mcp_types as types

from ramify.core.errors import ToolError
from ramify.core.tool import ToolResult
from ramify.tools.mcp_process import TOOK
from ramify.tools.output import made_safe

MAX_METADATA_BYTES: Final = 65536
"""Most bytes of structured content, which goes into the journal: as much as a result's text
(`tools.max_result_bytes`)."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Folder for files. Made when the first file arrives."""

    path: Path | None = None
    """None = one folder for all runs of a user on this machine. It lasts as long as temporary files do."""

    def keep(self, data: bytes, mime_type: str) -> str:
        """Write a file unless it exists. Returns its path; the file name is the hash of the content."""
        name = hashlib.sha256(data).hexdigest() + (mimetypes.guess_extension(mime_type) or ".bin")
        folder = self._temporary() if self.path is None else self.path
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / name
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=folder) as own:  # other runs never see a half-written file
                part = Path(own) / name
                part.write_bytes(data)
                part.replace(file)
        return str(file)

    def _temporary(self) -> Path:
        folder = Path(tempfile.gettempdir()) / f"ramify-attachments-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise ToolError(
                "tool_gave_up",
                f"{folder} is a link or another user's; name a folder by the option `attachments`",
            )
        return folder


@dataclass(slots=True)
class _Parts:
    """A result under construction."""

    folder: Folder
    texts: list[str] = field(default_factory=list[str])
    files: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(self, block: types.ContentBlock) -> None:
        match block:
            case types.TextContent():
                self.texts.append(block.text)
            case types.ImageContent() | types.AudioContent():
                self._keep(block.data, block.mime_type)
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                self.texts.append(resource.text)
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                self._keep(resource.blob, resource.mime_type or "application/octet-stream", uri=str(resource.uri))
            case types.ResourceLink():
                self.texts.append(
                    " ".join(filter(None, (block.title or block.name, str(block.uri), block.description)))
                )
            case _:
                self.texts.append(f"[{block.type}]")

    def _keep(self, encoded: str, mime_type: str, *, uri: str | None = None) -> None:
        try:
            data = base64.b64decode("".join(encoded.split()), validate=True)
        except ValueError as error:
            raise ToolError("tool_gave_up", f"the server sent {mime_type} that is no base64: {error}") from error
        file = {"name": self.folder.keep(data, mime_type), "mime_type": mime_type, "num_bytes": len(data)}
        self.files.append(file if uri is None else {**file, "uri": uri})
        self.texts.append(f"[{mime_type}, {len(data)} bytes]")


def result_of(said: types.CallToolResult, folder: Folder) -> ToolResult:
    """The result of one call, with its seconds if the server was started here. Behind a URL the event loop reads the
    answer, so its seconds are those of the loop: at least the call's own.

    Writes files to `folder`. Raises `ToolError` for a file that cannot be read.
    """
    parts = _Parts(folder)
    for block in said.content:
        parts.add(block)
    metadata: dict[str, Any] = {"files": parts.files} if parts.files else {}
    structured = said.structured_content
    if structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
        metadata |= _kept(structured, len(text.encode(errors="replace")))
        parts.texts = parts.texts or [text]
    attachments = tuple(file["name"] for file in parts.files)
    status, took_s = "error" if said.is_error else "ok", (said.meta or {}).get(TOOK)
    return ToolResult("\n".join(parts.texts), status, metadata, attachments, took_s=took_s)


def _kept(structured: Any, num_bytes: int) -> dict[str, Any]:
    """Structured content as metadata; only its size if a journal cannot store it."""
    kept = {"structured": structured}
    is_plain = made_safe(ToolResult("", metadata=kept), max_bytes=0).status != "crashed"
    return kept if is_plain and num_bytes <= MAX_METADATA_BYTES else {"structured_bytes": num_bytes}
