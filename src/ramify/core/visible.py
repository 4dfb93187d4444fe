"""Visible: text from a model, a tool or a data file, made safe to show.

Such text is untrusted. No control, direction or unassigned character is left in what these functions return, so nothing
in it acts on a terminal, a page or a picture.
"""

import unicodedata


def visible(text: str, *, keep: str = "") -> str:
    """`text` with every control, format and unassigned character spelt out, but for those in `keep`."""
    return "".join(c if c in keep or c == " " or c.isprintable() else _spelt(c) for c in text)


def shortened(text: str, width: int) -> str:
    """`visible` text of at most `width` characters: its beginning and its end."""
    shown = visible(text)
    if len(shown) <= width:
        return shown
    tail = width // 3
    return f"{shown[: width - tail - 1]}…{shown[-tail:]}"


def _spelt(character: str) -> str:
    code = ord(character)
    if character == "\n":
        return "⏎"
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    name = unicodedata.category(character)
    return f"<{name}+{code:04X}>"
