"""Error text: the message of an exception from plug-in code."""

from ramify.core.errors import ToolError
from ramify.edge.url_keys import without_url_keys


def error_text(error: BaseException) -> str:
    """Class name and message of an exception, whose `__str__` may itself raise. For a `ToolError`, only its message.

    Keys in addresses are struck out: the model may read the text."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - boundary to plug-in code: its exceptions are code too
        message = ""
    return without_url_keys(message if isinstance(error, ToolError) else f"{type(error).__name__}: {message}")
