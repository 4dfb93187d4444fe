"""What an MCP server says, of every kind and of none."""

import base64
from pathlib import Path
from typing import Any

import pytest
from mcp_types import CallToolResult

from ramify.core.errors import ToolError
from ramify.core.tool import ToolResult
from ramify.tools.mcp_content import MAX_METADATA_BYTES, Folder, result_of

PIXEL = b"\x89PNG and so on" * 9
DATA = base64.b64encode(PIXEL).decode()


def result(folder: Path, *blocks: dict[str, Any], **more: Any) -> ToolResult:
    return result_of(CallToolResult.model_validate({"content": list(blocks), **more}), Folder(folder))


def image(data: str) -> dict[str, Any]:
    return {"type": "image", "data": data, "mimeType": "image/png"}


def test_no_content_is_an_empty_text(tmp_path: Path) -> None:
    assert result(tmp_path) == ToolResult("")
    assert result(tmp_path, isError=True) == ToolResult("", "error")


def test_structured_content_alone_is_the_text_too(tmp_path: Path) -> None:
    assert result(tmp_path, structuredContent={"a": "é"}) == ToolResult(
        '{"a": "é"}', metadata={"structured": {"a": "é"}}
    )
    big = result(tmp_path, structuredContent={"a": "x" * MAX_METADATA_BYTES})
    assert big.metadata == {"structured_bytes": MAX_METADATA_BYTES + 9}
    assert result(tmp_path, structuredContent={"n": float("nan")}).metadata == {"structured_bytes": 10}


def test_base64_may_be_broken_into_lines(tmp_path: Path) -> None:
    lines = "\n".join(DATA[at : at + 76] for at in range(0, len(DATA), 76)) + "\n"
    (name,) = result(tmp_path, image(lines)).attachments
    assert Path(name).read_bytes() == PIXEL
    assert [file.name for file in tmp_path.iterdir()] == [Path(name).name], "nothing half written is left"


@pytest.mark.parametrize("data", ["é", "a", "!!!!"])
def test_a_file_that_cannot_be_read_is_a_fault_of_the_server(tmp_path: Path, data: str) -> None:
    with pytest.raises(ToolError, match="tool_gave_up: the server sent image/png that is no base64"):
        result(tmp_path, image(data))


def test_a_folder_that_a_stranger_could_have_led_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"ramify-attachments-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(ToolError, match="is a link or another user's"):
        Folder().keep(b"x", "image/png")
    assert not list(elsewhere.iterdir())
