"""Error text: what an exception of plug-in code says, in one line."""

from ramify.core.errors import ToolError


def error_text(error: BaseException) -> str:
    """Kind and message of an exception, whose `__str__` may itself be broken; a `ToolError` is its own message."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - boundary to plug-in code: its exceptions are code too
        message = ""
    return message if isinstance(error, ToolError) else f"{type(error).__name__}: {message}"
