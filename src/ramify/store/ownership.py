"""Ownership: shows that this user began a run on this machine.

The header of a run holds a MAC over itself and the configuration, keyed with a secret that only this user can read. The
secret is made when it is first needed, under `XDG_STATE_HOME` or `~/.local/state`. Another user, or one who changes the
run, cannot make the MAC. It does not cover the journal's other records.
"""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ramify.core.errors import StoreError
from ramify.store.framing import encode
from ramify.store.plain_file import read_plain
from ramify.store.records import Header

NUM_BYTES: Final = 32


def key_path() -> Path:
    """Where this user's secret is. Raises `StoreError` if the user has no home."""
    named = os.environ.get("XDG_STATE_HOME", "")
    try:
        state = Path(named) if Path(named).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise StoreError(f"there is no place for the key of your runs: {error}; set XDG_STATE_HOME") from error
    return state / "ramify" / "run-key"


def key() -> bytes:
    """This user's secret, made if there is none. Raises `StoreError` if it cannot be kept, or others can read it."""
    path = key_path()
    try:
        if not os.path.lexists(path):
            _make(path)
        return _read(path)
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"the key of your runs cannot be kept in {path}: {reason}; set XDG_STATE_HOME") from error


def header_mac(header: Header, config: str, secret: bytes) -> str:
    """The MAC of a run: over its header, whatever shard it is of, and the text of its configuration."""
    plain = encode(msgspec.structs.replace(header, mac="", shard=None))
    text = config.encode("utf-8", errors="replace")
    return hmac.new(secret, b"ramify run %d " % len(plain) + plain + text, hashlib.sha256).hexdigest()


def is_own(header: Header, config: str) -> bool:
    """Whether this user began the run on this machine. Raises `StoreError` without a secret to tell by."""
    return hmac.compare_digest(header.mac, header_mac(header, config, key()))


def keyed_digest(purpose: str, data: bytes) -> str:
    """A digest of `data` that nobody else can compare with a guess. Raises `StoreError` without a secret."""
    return hmac.new(key(), purpose.encode() + b"\0" + data, hashlib.sha256).hexdigest()


def _make(path: Path) -> None:
    """Make the secret as a whole: of two processes that begin together, one makes it and both read it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(NUM_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    found = os.lstat(path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StoreError(
            f"{path} is the key of your runs, and others may read it (owner {found.st_uid}, mode "
            f"{found.st_mode & 0o777:o}); delete it, and a new one is made"
        )
    secret = read_plain(path, max_bytes=NUM_BYTES)
    if len(secret) != NUM_BYTES:
        raise StoreError(f"{path} has {len(secret)} bytes and is no key of runs; delete it, and a new one is made")
    return secret
