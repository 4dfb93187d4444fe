"""Clients: who may ask, and how much: keys, requests in flight, tokens a day.

Keys are compared in constant time, all of them for every request, by their hashes. Counts are kept in memory: a gateway
that is started again begins a new day.
"""

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ramify.core.errors import ConfigError
from ramify.gateway.api_error import ApiError

KEYS_ENV: Final = "RAMIFY_GATEWAY_KEYS"
MIN_KEY_CHARS: Final = 16
DAY_S: Final = 86_400
AGAIN_S: Final = 1.0
"""When a client with too many requests in flight may ask again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of each client."""

    max_in_flight: int = 64
    max_tokens_a_day: int | None = None
    """Most tokens sampled between two midnights (UTC), by all trees of a client; None = any number. A tree that is
    growing when it is reached is finished."""

    def __post_init__(self) -> None:
        if self.max_in_flight < 1 or (self.max_tokens_a_day is not None and self.max_tokens_a_day < 1):
            raise ConfigError(f"impossible limits {self!r}: at least 1 of each is needed")


@dataclass(slots=True)
class Client:
    """One client, known by its key, and what it uses now."""

    name: str
    digest: bytes = b""
    num_in_flight: int = 0
    day: int = 0
    num_tokens: int = 0
    """Tokens sampled for it on `day`."""


@dataclass(slots=True)
class Clients:
    """All clients. Without keys there is one, whoever asks."""

    limits: ClientLimits = ClientLimits()
    keys: Sequence[str] = field(default=(), repr=False)
    now: Callable[[], float] = time.time
    _known: list[Client] = field(default_factory=list[Client])

    def __post_init__(self) -> None:
        self._known = [Client(f"key {number}", _digest(key)) for number, key in enumerate(self.keys, 1)]
        self._known = self._known or [Client("anybody")]

    @property
    def num_in_flight(self) -> int:
        return sum(client.num_in_flight for client in self._known)

    def of(self, authorization: str | None) -> Client:
        """The client of an Authorization header. Raises `ApiError` (401)."""
        if not self.keys:
            return self._known[0]
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip() if scheme.casefold() == "bearer" else "")
        matches = [hmac.compare_digest(given, client.digest) for client in self._known]
        if not any(matches):
            what = "no key" if not authorization else "a key that is not known here"
            raise ApiError(
                401, f"the request has {what}; send one as `Authorization: Bearer KEY`", code="invalid_api_key"
            )
        return self._known[matches.index(True)]

    @contextmanager
    def admitted(self, client: Client) -> Iterator[None]:
        """A request of the client that is in flight while this lasts. Raises `ApiError` (429)."""
        if client.num_in_flight >= self.limits.max_in_flight:
            raise ApiError(
                429,
                f"{client.num_in_flight} of your requests are in flight; at most {self.limits.max_in_flight}",
                code="too_many_in_flight",
                retry_after_s=AGAIN_S,
            )
        self._refuse_spent(client)
        client.num_in_flight += 1
        try:
            yield
        finally:
            client.num_in_flight -= 1

    def charge(self, client: Client, num_tokens: int) -> None:
        """Count tokens that were sampled for the client."""
        self._today(client)
        client.num_tokens += num_tokens

    def _refuse_spent(self, client: Client) -> None:
        most = self.limits.max_tokens_a_day
        self._today(client)
        if most is not None and client.num_tokens >= most:
            left_s = (client.day + 1) * DAY_S - self.now()
            raise ApiError(
                429,
                f"{client.num_tokens} tokens were sampled for you today; at most {most}",
                code="insufficient_quota",
                retry_after_s=left_s,
            )

    def _today(self, client: Client) -> None:
        """Begin a new day for the client if there is one."""
        if (day := int(self.now() // DAY_S)) != client.day:
            client.day, client.num_tokens = day, 0


def keys_in(text: str, *, where: str) -> list[str]:
    """The keys in a text: one a line or between commas; what follows `#` is not read. Raises `ConfigError`, without a
    key."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    keys = [key.strip() for line in lines for key in line.split(",") if key.strip()]
    for number, key in enumerate(keys, 1):
        if len(key) < MIN_KEY_CHARS or not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(
                f"{where}: key {number} of {len(keys)} is no key: it has {len(key)} characters; at least "
                f"{MIN_KEY_CHARS} printable ASCII characters without space are needed"
            )
    if len(set(keys)) < len(keys):
        raise ConfigError(f"{where}: a key stands there twice; give every client its own")
    return keys


def read_keys(path: Path | None, environment: str | None) -> list[str]:
    """The keys of a file, or of the environment variable if no file is named. Raises `ConfigError`."""
    if path is None:
        return keys_in(environment or "", where=f"the environment variable {KEYS_ENV}")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--keys {path}: {error}") from error
    if not (keys := keys_in(text, where=f"--keys {path}")):
        raise ConfigError(f"--keys {path}: there is no key in it; write one a line")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()
