"""MCP folders: the working folders of a server's branches.

A branch has `BASE/RUN/ID/workdir`, a copy of the template or of another branch's folder, and `BASE/RUN/ID/tmp` for
temporary files. All of a run are removed at its end, or by the next run that looks (`workspaces/run_folder.py`).

Branches have different paths, and texts must not show which branch they come from. So the model sees `WORD` in place of
the path, in the texts that come back, and the server sees the path in place of `WORD`, in the arguments.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ramify.core.errors import ToolError
from ramify.core.problem import Problem
from ramify.sandbox.folders import remove
from ramify.workspaces.run_folder import RUN_ID, discard_run, new_run, remove_left

if TYPE_CHECKING:
    from ramify.tools.mcp_address import McpAddress
    from ramify.workspaces.shell_session import ServerStart

WORD: Final = "/workdir"
"""What the model sees in place of the path of its branch's folder."""
PLACEHOLDER: Final = "{branch}"
"""Stands for the path in the options `args`, `env` and `cwd`."""
MAX_FILES: Final = 20_000
"""Most files, folders and links in a folder. Each branch has a copy, which takes about 80 µs a file."""
NUM_TRIES: Final = 3
"""Times that a folder is copied whose files change meanwhile."""
DIGEST: Final = hashlib.sha256

_WORD_IN_TEXT: Final = re.compile(rf"(?:(?<![\w.~/-])|(?<=://)){WORD}(?![\w-]|\.\w)")


class FolderFault(Exception):
    """A folder cannot be copied. The message says which file is in the way, and what is allowed."""


@dataclass(frozen=True, slots=True)
class BranchFolder:
    """The folder of one branch."""

    home: Path

    @property
    def path(self) -> Path:
        return self.home / WORD[1:]

    @property
    def temporary(self) -> Path:
        """Folder for temporary files: the branch's own, empty at the start of each server, never copied."""
        return self.home / "tmp"


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file, folder or link below a folder."""

    name: str
    """Relative to the folder."""
    status: os.stat_result

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self.status.st_mode)

    @property
    def kind(self) -> str:
        """`file`, `folder`, `link`, `socket` or `other`."""
        mode = self.status.st_mode
        kinds = {"file": stat.S_ISREG, "folder": stat.S_ISDIR, "link": stat.S_ISLNK, "socket": stat.S_ISSOCK}
        return next((kind for kind, is_one in kinds.items() if is_one(mode)), "other")

    @property
    def trace(self) -> tuple[object, ...]:
        """What changes when the file is written."""
        found = self.status
        return self.name, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino


class Folders:
    """All folders of one server in one run. Files on disk; made when the first branch needs one. Methods block."""

    def __init__(self, template: Path | None, *, max_bytes: int) -> None:
        self._template = template
        self._max_bytes = max_bytes
        self._run: Path | None = None
        self._lock: int | None = None
        self.base = base_folder()
        self._shown = re.compile(f"{re.escape(str(self.base))}(?:/{RUN_ID}(?:/{RUN_ID})?)?(?=(/?))")
        self._home = re.compile(f"{re.escape(str(self.base))}/{RUN_ID}/{RUN_ID}".encode())

    def check_start(self) -> None:
        """Remove the folders of runs that were killed, before a run."""
        remove_left(self.base)

    def new(self) -> BranchFolder:
        """The place of a new folder, still without files."""
        return BranchFolder(self._made() / secrets.token_hex(6))

    def fill(
        self,
        folder: BranchFolder,
        source: BranchFolder | None = None,
        problem: "Problem | ServerStart | None" = None,
    ) -> None:
        """Copy the template, or the folder of another branch, into a new folder. Raises `FolderFault`."""
        run = self._made()
        with _told("the template" if source is None else "the working folder"):
            if source is None and not (kept := run / "template").exists():
                part = run / f"{secrets.token_hex(6)}.part"
                part.mkdir()
                if self._template is not None:
                    self._refuse_own(self._template)
                    self._copy(self._template, part, is_template=True)
                with contextlib.suppress(OSError):  # Another branch was first.
                    part.rename(kept)
            folder.path.mkdir(parents=True)
            folder.temporary.mkdir()
            self._copy(run / "template" if source is None else source.path, folder.path)

    def check_template(self) -> str:
        """The digest of the template. Raises `FolderFault` if it cannot be copied."""
        if self._template is None:
            return self.digest(None)
        with _told("the template"):
            self._refuse_own(self._template)
            for entry in self._entries(self._template):
                _refuse_unfit(self._template, entry)
            return self.digest(self._template)

    def address(self, address: "McpAddress", folder: BranchFolder) -> "McpAddress":
        """The address of a server that acts on a folder."""
        return address.at(folder)

    def digest_of(self, folder: BranchFolder) -> str:
        return self.digest(folder.path)

    def digest(self, top: Path | None) -> str:
        """Sha256 over path, mode, content and link target of everything in a folder, the same in every branch."""
        digest = DIGEST()
        for entry in [] if top is None else self._entries(top):
            data = self._said(top / entry.name, entry) if top is not None else b""
            head = f"{entry.kind} {entry.mode:o} {len(data)} ".encode()
            digest.update(head + os.fsencode(entry.name) + b"\0" + data)
        return digest.hexdigest()

    def settle(self, folder: BranchFolder) -> None:
        """Make a copy ready for a server of its own: text files that name the folder they were copied from name this
        one. Raises `FolderFault` for another file that does: its server would act on the other branch's folder."""
        own = str(folder.home).encode()
        for entry in self._entries(folder.path):
            path = folder.path / entry.name
            if entry.kind != "file":
                continue
            data = path.read_bytes()
            if not any(found != own for found in self._home.findall(data)):
                continue
            if not _is_text(data):
                raise FolderFault(
                    f"{entry.name!r} holds the path of its branch's folder and is no text, so a copy of it would lead "
                    "into another branch: give the server relative paths"
                )
            path.write_bytes(self._home.sub(lambda found: own, data))
            os.utime(path, ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns))

    def remove(self, folder: BranchFolder) -> None:
        with contextlib.suppress(OSError):
            remove(str(folder.home))

    def close(self) -> None:
        """Remove everything. Folders made later have a new place."""
        if self._run is not None and self._lock is not None:
            discard_run(self._run, self._lock)
        self._run = self._lock = None

    def shown(self, text: str) -> str:
        """`text` without paths of branches: each is as if `WORD` were a folder of the root."""
        return self._shown.sub(lambda found: "" if found[1] else "/", text) if str(self.base) in text else text

    def meant(self, text: str, folder: BranchFolder) -> str:
        """`text` of the model with the path of the branch's folder in place of `WORD`."""
        return _WORD_IN_TEXT.sub(lambda _: str(folder.path), text) if WORD in text else text

    def _made(self) -> Path:
        if self._run is None:
            self._run, self._lock = new_run(self.base, mode=0o700)
        return self._run

    def _refuse_own(self, template: Path) -> None:
        if self.base.is_relative_to(template):
            raise FolderFault(f"{str(template)!r} holds {str(self.base)!r}, where the copies of it are made")
        if not template.is_dir():
            raise FolderFault(f"{str(template)!r} is no folder")

    def _entries(self, top: Path) -> list[FolderEntry]:
        """Everything below a folder, sorted by name. Raises `FolderFault` if it is too much."""
        found: list[FolderEntry] = []
        waiting, num_bytes = [""], 0
        while waiting:
            inner = waiting.pop()
            with os.scandir(top / inner) as entries:
                for each in entries:
                    entry = FolderEntry(
                        f"{inner}/{each.name}" if inner else each.name, each.stat(follow_symlinks=False)
                    )
                    found.append(entry)
                    waiting += [entry.name] if entry.kind == "folder" else []
                    num_bytes += entry.status.st_size if entry.kind == "file" else 0
                    self._refuse_more(len(found), num_bytes)
        return sorted(found, key=lambda entry: entry.name)

    def _refuse_more(self, num_files: int, num_bytes: int) -> None:
        if num_files > MAX_FILES:
            raise FolderFault(f"it holds more than {MAX_FILES} files, and every branch has a copy of it")
        if num_bytes > self._max_bytes:
            raise FolderFault(
                f"it holds more than {self._max_bytes} bytes, and every branch has a copy of it; max_workdir_bytes "
                "allows more"
            )

    def _said(self, path: Path, entry: FolderEntry) -> bytes:
        """The content of a file, or the target of a link, without paths of branches."""
        match entry.kind:
            case "file":
                data = path.read_bytes()
            case "link":
                data = os.fsencode(path.readlink())
            case _:
                return b""
        return self._home.sub(b"", data)

    def _copy(self, source: Path, target: Path, *, is_template: bool = False) -> None:
        for _ in range(NUM_TRIES):
            entries = self._entries(source)
            self._copy_all(source, target, entries, is_template=is_template)
            if [entry.trace for entry in entries] == [entry.trace for entry in self._entries(source)]:
                return
            remove(str(target))
            target.mkdir()
        raise FolderFault("its files are written while no call is in flight")

    def _copy_all(self, source: Path, target: Path, entries: list[FolderEntry], *, is_template: bool) -> None:
        folders: list[FolderEntry] = []
        for entry in entries:
            if is_template:
                _refuse_unfit(source, entry)
            there = target / entry.name
            match entry.kind:
                case "folder":
                    there.mkdir(mode=0o700)
                    folders.append(entry)
                case "link":
                    there.symlink_to(self._moved(source / entry.name, source, target))
                case "file":
                    shutil.copyfile(source / entry.name, there, follow_symlinks=False)
                    there.chmod(entry.mode)
                    os.utime(there, ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns))
                case "socket":
                    """Nobody listens on a copy."""
                case _:
                    raise FolderFault(f"{entry.name!r} is no file, folder or link, and cannot be copied")
        for entry in reversed(folders):  # A folder may forbid writing, so its mode comes after its files.
            (target / entry.name).chmod(entry.mode)

    def _moved(self, link: Path, source: Path, target: Path) -> str:
        """The target of a link; if it leads into `source` by an absolute path, the copy leads into the copy."""
        found = os.fspath(link.readlink())
        inner = os.path.relpath(found, source) if Path(found).is_relative_to(source) else None
        if inner is not None:
            return os.path.join(target, inner)  # noqa: PTH118 - a link is text
        return os.fsdecode(self._home.sub(lambda _: os.fsencode(target.parent), os.fsencode(found)))


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text in it changed."""
    match value:
        case str():
            return change(value)
        case list() | tuple():
            return [mapped(each, change) for each in value]  # pyright: ignore[reportUnknownVariableType]
        case dict():
            return {mapped(key, change): mapped(each, change) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def base_folder() -> Path:
    """Folder for the folders of all runs of this user. Made if needed. Raises `ToolError` if it is somebody else's."""
    folder = Path(tempfile.gettempdir()).resolve() / f"ramify-branches-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ToolError("tool_gave_up", f"{folder} is a link or another user's; set TMPDIR to a folder of your own")
    return folder


def _refuse_unfit(template: Path, entry: FolderEntry) -> None:
    if entry.kind in ("socket", "other"):
        raise FolderFault(f"{entry.name!r} is no file, folder or link: take it out")
    path = template / entry.name
    if entry.kind == "link" and not _resolved(path).is_relative_to(template.resolve()):
        raise FolderFault(
            f"the link {entry.name!r} leads to {str(path.readlink())!r}, out of the folder, where all branches would "
            "share: put a copy in its place"
        )


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise FolderFault(f"the link {path.name!r} leads nowhere: {error}") from error


def _is_text(data: bytes) -> bool:
    try:
        return b"\0" not in data and bool(data.decode())
    except UnicodeDecodeError:
        return False


@contextlib.contextmanager
def _told(what: str) -> Any:
    """Turn the system's words into a fault of the folder."""
    try:
        yield
    except FolderFault as error:
        raise FolderFault(f"{what} cannot be copied: {error}") from error
    except (OSError, shutil.Error) as error:
        raise FolderFault(f"{what} cannot be copied: {error}") from error
