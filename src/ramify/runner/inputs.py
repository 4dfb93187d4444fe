"""Inputs: what a run reads besides its configuration, as digests: its problems, local weights and plug-in files.

They stand in the journal's header, and a run that goes on is compared with them. Gold answers are in one digest, keyed
with the user's secret, so nobody can compare a guess with it. Of a large file of weights, the beginning and blocks at
even distances are read. Modules that a plug-in's file imports are not covered.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from ramify.config.reach import engines_of, plugin_files
from ramify.config.run_config import RunConfig
from ramify.core.errors import ConfigError, StoreError, nearest
from ramify.core.problem import Problem
from ramify.engines.shipped import MODELS
from ramify.store import ownership
from ramify.store.records import Accepted, Header, InputsValue
from ramify.version import __version__

Changed = Literal["data", "weights", "plugins"]
WHOLE_BYTES: Final = 64 * 2**20
"""A larger file of weights is sampled."""
BLOCK_BYTES: Final = 64 * 2**10
NUM_BLOCKS: Final = 256
BEGINNING_BYTES: Final = 16 * 2**20
"""Holds the header of a safetensors file: names, types, shapes and places of its tensors."""
WEIGHTS: Final = frozenset({".bin", ".gguf", ".jinja", ".json", ".npy", ".npz", ".pt", ".pth", ".safetensors"})
"""Endings of files that say what a model is."""


def inputs_of(config: RunConfig, problems: Sequence[Problem]) -> InputsValue:
    """The inputs as they are now. Reads the files."""
    return InputsValue(
        problems=_questions(problems),
        secrets=_secrets(problems),
        weights=dict(_weights(config)),
        plugins={str(path): _file_digest(path) for path in plugin_files(config)},
    )


def accept_option(text: str) -> frozenset[Changed]:
    """The kinds of inputs that `--accept` names. Raises `ConfigError`."""
    known: dict[str, Changed] = {str(kind): kind for kind in get_args(Changed)}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"--accept {text!r}: unknown {name!r}; {nearest(name, known)}")
    return frozenset(known[name] for name in names)


def check_inputs(
    path: Path, recorded: InputsValue, now: InputsValue, *, is_own: bool, accept: Collection[str]
) -> Accepted | None:
    """Compare a run's inputs with what they were. Returns the record of what is accepted; None = nothing differs.

    Raises `StoreError` that says what differs and how to accept it. `is_own`: whether the recorded gold answers can be
    compared, because this user's secret keyed them.
    """
    found: dict[str, str] = dict(_differences(recorded, now, is_own=is_own))
    if refused := [kind for kind in found if kind not in accept]:
        told = "\n".join(f"  {kind}: {found[kind]}" for kind in refused)
        raise StoreError(
            f"{path} does not go on, because its inputs are not those that it began with:\n{told}\n"
            f"Put them back, or go on with what is there now: ramify resume {path} --accept {','.join(found)}"
        )
    return Accepted(what=tuple(found), inputs=now) if found else None


def data_difference(recorded: Iterable[InputsValue], problems: Sequence[Problem], *, is_own: bool) -> str | None:
    """What of the data differs from any of the recorded inputs, as a resume compares it; None = nothing."""
    data = {"problems": _questions(problems), "secrets": _secrets(problems)}
    for inputs in recorded:
        if found := dict(_differences(inputs, msgspec.structs.replace(inputs, **data), is_own=is_own)):
            return found["data"]
    return None


def remarks(header: Header) -> Iterator[str]:
    """What people should know of a run that goes on here."""
    if header.library != __version__:
        yield f"ramify {header.library} began this run, and {__version__} goes on with it"
    if header.inputs is None and header.shard is None:
        yield "an earlier version began this run: its data, weights and plug-ins cannot be compared with those of now"


def _differences(recorded: InputsValue, now: InputsValue, *, is_own: bool) -> Iterator[tuple[Changed, str]]:
    if recorded.problems != now.problems:
        yield "data", "the questions, their ids, their public columns or their order"
    elif is_own and recorded.secrets and now.secrets and recorded.secrets != now.secrets:
        yield "data", "the gold answers"
    if engines := _changed(recorded.weights, now.weights):
        yield "weights", ", ".join(f"the files in {name}" for name in engines)
    if files := _changed(recorded.plugins, now.plugins):
        yield "plugins", ", ".join(files)


def _changed(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*recorded, *now} if recorded.get(name) != now.get(name))


# -- digests ----------------------------------------------------------------------------------------------------------


def _questions(problems: Sequence[Problem]) -> str:
    """One digest of all that everybody may see of the problems."""
    return _digest((p.uid, p.question, p.public, p.split) for p in problems)


def _secrets(problems: Sequence[Problem]) -> str:
    """One keyed digest of all gold answers; empty = there are none, or no secret to key it with."""
    if not any(problem.secret for problem in problems):
        return ""
    digest = _digest((p.uid, p.question, p.secret) for p in problems)
    try:
        return ownership.keyed_digest("gold answers", digest.encode())
    except StoreError:
        return ""


def _digest(values: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for value in values:
        part = _plain_bytes(value)
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()


def _plain_bytes(value: Any) -> bytes:
    """A value as bytes that are the same in every process. Of an object of an unknown kind only the kind counts."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain, order="deterministic")
    except (TypeError, ValueError, OverflowError):  # keys that are no text, lone surrogates, huge numbers
        return b"".join(_parts(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    plain = getattr(value, "tolist", None)  # numpy's arrays and numbers
    return plain() if callable(plain) else {"kind": type(value).__qualname__}


def _parts(value: Any) -> Iterator[bytes]:
    match value:
        case str():
            yield b"text" + value.encode("utf-8", "surrogatepass")
        case bytes() | None | bool() | int() | float():
            yield repr(value).encode()
        case Mapping():
            yield b"{%d" % len(value)
            for key in sorted(value, key=str):
                yield from _parts(str(key))
                yield from _parts(value[key])
        case list() | tuple():
            yield b"[%d" % len(value)
            for each in value:
                yield from _parts(each)
        case _:
            yield _plain_bytes(_plain(value))


def _weights(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Folder of a local model -> digest of its files."""
    for engine in engines_of(config).values():
        if engine.model is not None and engine.model not in MODELS and (folder := Path(engine.model)).is_dir():
            files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS and path.is_file())
            yield engine.model, _digest((path.name, _file_digest(path)) for path in files)


def _file_digest(path: Path) -> str:
    """SHA-256 of a file: of all of it, or of its size, its beginning and blocks at even distances."""
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(b"%d:" % size + file.read(BEGINNING_BYTES))
        for number in range(NUM_BLOCKS):
            file.seek((size - BLOCK_BYTES) * number // (NUM_BLOCKS - 1))
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()
