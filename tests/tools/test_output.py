import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.core.tool import ToolResult
from ramify.tools.output import MIN_BYTES, capped, made_safe, valid


def safe(returned: object, max_bytes: int = 65536) -> ToolResult:
    return made_safe(returned, max_bytes=max_bytes)


def test_a_sound_result_stays_as_it_is() -> None:
    result = ToolResult("8 : 13 5 8", "error", {"left": [13, 5, 8], "note": None}, ("ab12",))
    assert safe(result) == result


def test_bare_text_and_bytes_are_results() -> None:
    assert safe("text") == ToolResult("text")
    assert safe(b"caf\xc3\xa9 \xff\x00") == ToolResult("café \ufffd\x00")


def test_no_text_is_an_empty_result_unless_something_is_wrong() -> None:
    assert safe("").status == "empty"
    assert safe(ToolResult("", "timeout")).status == "timeout"


def test_lone_surrogates_are_replaced_wherever_they_are() -> None:
    result = safe(ToolResult("a\ud800b\udfffc", metadata={"k\ud800": ["\udc00"]}, attachments=("f\ud800",)))
    assert result.text == "a\ufffdb\ufffdc"
    assert result.attachments == ("f\ufffd",)
    assert result.metadata == {"k\ufffd": ["\ufffd"]}


@pytest.mark.parametrize(
    "junk",
    [
        None,
        7,
        object(),
        ToolResult(None),  # type: ignore[arg-type]
        ToolResult("x", "refused"),
        ToolResult("x", "invalid"),
        ToolResult("x", "fine"),  # type: ignore[arg-type]
        ToolResult("x", metadata=[1]),  # type: ignore[arg-type]
        ToolResult("x", metadata={1: 2}),  # type: ignore[dict-item]
        ToolResult("x", metadata={"a": object()}),
        ToolResult("x", metadata={"a": math.nan}),
        ToolResult("x", metadata={"a": 1 << 70}),
        ToolResult("x", attachments=(1,)),  # type: ignore[arg-type]
        ToolResult("x", attachments="frame.png"),  # type: ignore[arg-type]
        ToolResult("x", attachments=None),  # type: ignore[arg-type]
    ],
)
def test_junk_is_a_crash_that_says_what_came(junk: object) -> None:
    result = safe(junk)
    assert result.status == "crashed"
    assert result.text.startswith("the tool returned")


def test_metadata_that_holds_itself_is_junk() -> None:
    loop: dict[str, object] = {}
    loop["again"] = loop
    assert safe(ToolResult("x", metadata=loop)).status == "crashed"


def test_metadata_is_a_copy() -> None:
    mutable = {"left": [1]}
    result = safe(ToolResult("x", metadata=mutable))
    mutable["left"].append(2)
    assert result.metadata == {"left": [1]}


@given(st.text(max_size=2000) | st.text("aé✓😀", min_size=300, max_size=2000), st.integers(MIN_BYTES, 1200))
def test_capped_text_fits_and_keeps_both_ends(text: str, max_bytes: int) -> None:
    text = valid(text)
    cut = capped(text, max_bytes)
    size = len(text.encode())
    assert len(cut.encode()) <= max(max_bytes, MIN_BYTES)
    if size <= max_bytes:
        assert cut == text
    else:
        head, tail = cut.split(f"\n[… {size} bytes in all, cut to {max_bytes} …]\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(cut.encode()) > max_bytes - 10
