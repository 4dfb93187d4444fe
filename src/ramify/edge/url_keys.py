"""URL keys: strikes the user, the password and the keys out of addresses before a person or a log sees them."""

import re
from typing import Final

STRUCK: Final = "***"

_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/?#]*@")
_VALUE = re.compile(
    r"(?<=[?&;#])([^=&;#]*(?:key|token|secret|passw|pwd|auth|sig|credential)[^=&;#]*=)[^&;#]*", re.IGNORECASE
)


def without_url_keys(text: str) -> str:
    """`text` with `***` for what stands before an `@` in its addresses, and for each query value whose name says that
    it is a key, a token, a password or a signature."""
    return _ADDRESS.sub(lambda found: _VALUE.sub(rf"\1{STRUCK}", _USER.sub(f"{STRUCK}@", found[0])), text)
