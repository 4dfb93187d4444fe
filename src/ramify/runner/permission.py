"""Permission: whether a run may go on here: this user began it on this machine, or trusts whoever did."""

from pathlib import Path

import msgspec

from ramify.config.configure import recorded
from ramify.config.reach import reach
from ramify.core.errors import StoreError
from ramify.store import ownership
from ramify.store.records import Header
from ramify.store.store import config_hash, header_and_config


def signed(header: Header, config: str) -> Header:
    """The header of a run that begins with this configuration. Without a secret of the user it is not signed."""
    header = msgspec.structs.replace(header, config_hash=config_hash(config))
    try:
        return msgspec.structs.replace(header, mac=ownership.header_mac(header, config, ownership.key()))
    except StoreError:
        return header


def is_signed_here(header: Header, config: str) -> bool:
    """Whether this user's secret signed the run."""
    try:
        return ownership.is_own(header, config)
    except StoreError:
        return False


def unsigned_reason() -> str | None:
    """Why runs that begin here are not signed; None = they are."""
    try:
        ownership.key()
    except StoreError as error:
        return f"{error}. Nobody can tell that this run is yours: `ramify resume` will need --trust"
    return None


def check_permitted(path: Path, *, is_trusted: bool, remedy: str | None = None) -> str | None:
    """Refuse to go on with a run that this user did not begin here, unless it is trusted. Loads nothing of it.

    Returns what people should know of a foreign run. Raises `StoreError` that says what would run, and the `remedy`;
    None = that of the command line.
    """
    header, text = header_and_config(path)
    found = reach(recorded(text, source=str(path)))
    why = _foreign(header, text, has_reach=bool(found))
    if why is None:
        return None
    told = "\n".join(f"  {line}" for line in found or ["nothing but built-in parts"])
    if is_trusted:
        return f"{path} goes on although {why}. It\n{told}"
    raise StoreError(
        f"{path} does not go on: {why}. It would do what its configuration says:\n{told}\n"
        f"If you trust whoever made it: {remedy or f'ramify resume {path} --trust'}"
    )


def _foreign(header: Header, text: str, *, has_reach: bool) -> str | None:
    """Why the run may be another's; None = this user began it here. Runs of versions before the signature go on if they
    reach nothing."""
    if not header.mac:
        is_earlier = header.reading is None and not has_reach
        return None if is_earlier else "it is not signed by whoever began it"
    try:
        if ownership.is_own(header, text):
            return None
    except StoreError as error:
        return f"nobody can tell that you began it ({error})"
    return "you did not begin it on this machine, or it was changed since"
