"""Node: one state of a session, as a waiting process. Runs inside the sandbox: standard library only.

Every step runs in a fork of the node. After the step, the child is the node of the new state; the parent stays the node
of the old state. The host has a socket to each node. Foreign code can change this module only in its own descendants,
so nothing here is a wall: it must work for honest code and die otherwise.
"""

# ruff: noqa: PTH208 - paths are text here: pathlib is slow to import and knows no descriptors

import ast
import builtins
import gc
import io
import linecache
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

from ramify.sandbox import folders, inherited, kernel, landlock
from ramify.sandbox.protocol import (
    ERROR,
    LENGTH_BYTES,
    NO_PROCESS,
    NO_ROOM,
    OK,
    STARTED,
    TOO_MUCH,
    SandboxStep,
    read_exactly,
)

# Imported by name, so that a program that replaces them in their modules still ends.
from marshal import loads as _loads  # isort: skip
from sys import setprofile, settrace  # isort: skip
from signal import pause  # isort: skip
from os import _exit, close, dup2, fork, getpid, listdir, waitpid, write  # isort: skip

NUM_STREAMS: Final = 3
FAILED: Final = 70
"""Exit status of a child that failed."""
NUM_OWN_SCOPES: Final = landlock.MAX_LAYERS - 2
"""Number of steps on one path with a scope of their own; deeper steps share the scope of the last one."""
_QUIET: Final = (signal.SIGCHLD, signal.SIGHUP)
"""Signals that a waiting node ignores: dead children then need no reaping, and the end of a session does not kill
it."""


class SandboxNode:
    """The loop of one process. `box` is the folder of all states' files, `shared` are other folders that a state has;
    the limits apply to the files of one state."""

    def __init__(
        self,
        channel: int,
        *,
        box: str,
        shared: tuple[str, ...],
        max_files: int,
        max_files_bytes: int,
        has_scopes: bool,
    ) -> None:
        self._channel = channel
        self._box = box
        self._shared = shared
        self._roots = (f"{box}/{folders.LIVE}/", *(f"{path}/" for path in shared))
        self._opened: inherited.OpenFiles | None = None
        self._here = ""
        self._max_files = max_files
        self._max_files_bytes = max_files_bytes
        self._main = ModuleType("__main__")
        self._main.__dict__["__builtins__"] = builtins
        self._num_scopes = 1 if has_scopes and _has_landlock() else NUM_OWN_SCOPES
        self._signals: dict[int, Any] = {}

    def serve(self) -> None:
        """Fork for every step until the host hangs up. Never returns: the child continues in the same loop."""
        sys.modules["__main__"] = self._main
        self._quieten()
        while True:
            step, channel, output = self._received()
            _reap()
            drawn = random.getstate()  # The `random` module draws a new seed in every fork.
            try:
                is_child = fork() == 0
            except OSError:
                _send(channel, NO_PROCESS + step.nonce)
                is_child = False
            if is_child:
                random.setstate(drawn)
                self._become(step, channel, output)
            else:
                close(channel)
                close(output)

    def _received(self) -> tuple[SandboxStep, int, int]:
        """The next step, with the child's socket and output. Exits if the host is gone."""
        with socket.socket(fileno=self._channel) as stream:
            try:
                head, descriptors, _, _ = socket.recv_fds(stream, LENGTH_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
                if len(head) < LENGTH_BYTES or len(descriptors) != 2:
                    _exit(0)
                fields = _loads(read_exactly(self._channel, int.from_bytes(head, "little")))
            except (OSError, EOFError):
                _exit(0)
            finally:
                stream.detach()
        return SandboxStep(*fields), descriptors[0], descriptors[1]

    def _become(self, step: SandboxStep, channel: int, output: int) -> None:
        """Run the step in the child, which then becomes the next node. The only other way out of this frame is the
        child's exit."""
        try:
            _send(channel, STARTED + step.nonce)
            close(self._channel)
            self._channel = channel
            own = getpid()
            if step.folder == folders.COPY:
                _send(channel, self._put_away() + step.nonce)
                return
            self._prepare(step, output)
            word = OK if run(step.code, self._main.__dict__, name=f"<step {step.number}>") else ERROR
            if getpid() != own:  # A fork that foreign code made and did not end.
                _exit(0)
            self._settle(step)
            _send(channel, word + step.nonce)
        except BaseException:  # noqa: BLE001 - whatever foreign code raises here must not reach a frame of the parent
            _exit(FAILED)

    def _prepare(self, step: SandboxStep, output: int) -> None:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if self._num_scopes < NUM_OWN_SCOPES:
            landlock.enter_scope()
            self._num_scopes += 1
        try:
            live = f"{self._box}/{step.folder}"
            folders.take(self._box, step.folder, step.source, shared=self._shared, here=self._here)
            if self._opened is not None:
                self._opened.separate(spare=f"{live}/{folders.TMP}/")
        except OSError:
            _send(self._channel, NO_ROOM + step.nonce)
            _exit(0)
        dup2(output, 1)
        dup2(output, 2)
        close(output)
        _open_streams()
        for number, handler in self._signals.items():
            signal.signal(number, handler)

    def _settle(self, step: SandboxStep) -> None:
        """Turn the child into a waiting node: no other threads, signals ignored, files within the limits."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._quieten()
        _reap()
        _fill_streams()
        _shed_threads()
        if not self._fits():
            _send(self._channel, TOO_MUCH + step.nonce)
            _exit(0)
        self._here = folders.here()
        self._opened = inherited.OpenFiles(self._roots)

    def _put_away(self) -> bytes:
        """Copy the files that a finished step left, and remove them. Only ever runs in a child of the first state,
        which ran no foreign code."""
        try:
            if not self._fits():
                return TOO_MUCH
            folders.keep(self._box, shared=self._shared)
        except OSError:
            return NO_ROOM
        finally:
            for path in (f"{self._box}/{folders.LIVE}/{folders.WORK}", *self._shared):
                folders.empty(path)
        return OK

    def _fits(self) -> bool:
        live = f"{self._box}/{folders.LIVE}"
        return folders.fits(live, max_bytes=self._max_files_bytes, max_files=self._max_files, shared=self._shared)

    def _quieten(self) -> None:
        self._signals = {number: signal.signal(number, signal.SIG_IGN) or signal.SIG_DFL for number in _QUIET}


def run(code: str, scope: dict[str, Any], *, name: str) -> bool:
    """Execute `code` like a notebook cell: the value of a last expression is shown. False = it raised."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), scope)
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), scope))
    except SystemExit as stop:
        return _left(stop.code)
    except BaseException as error:  # noqa: BLE001 - the boundary to foreign code
        settrace(None)
        setprofile(None)
        _report(error)
        return False
    finally:
        settrace(None)  # No tracing of this module's own code.
        setprofile(None)
    return True


def _left(code: object) -> bool:
    """`exit()` ends a step, not the session. Returns whether it meant success; a message goes to stderr, as in
    Python."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)  # noqa: T201 - as Python does
    return code is None or code == 0


def _report(error: BaseException) -> None:
    """The traceback, without the frames of this module."""
    try:
        trace = error.__traceback__
        traceback.print_exception(type(error), error, trace.tb_next if trace is not None else None)
    except BaseException:  # noqa: BLE001 - an exception is foreign code too
        with suppress(OSError):
            write(2, f"{type(error).__name__}\n".encode(errors="replace"))


def _open_streams() -> None:
    """Open unbuffered standard streams: everything printed before a kill is already in the pipe."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)  # pyright: ignore[reportArgumentType]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # pyright: ignore[reportAttributeAccessIssue]  # noqa: SIM115


def _fill_streams() -> None:
    """Reopen those of descriptors 0 to 2 that foreign code closed, so that none of them becomes the next step's
    socket."""
    while (number := os.open("/dev/null", os.O_RDWR)) < NUM_STREAMS:
        os.set_inheritable(number, True)
    close(number)


def _shed_threads() -> None:
    """Continue in a process with only this thread: a fork copies no other thread. The host kills the process with all
    threads."""
    if len(listdir("/proc/self/task")) > 1 and fork():
        while True:
            pause()


def _reap() -> None:
    with suppress(ChildProcessError):
        while waitpid(-1, os.WNOHANG)[0]:
            pass


def _send(channel: int, message: bytes) -> None:
    """MSG_NOSIGNAL: otherwise a closed other end raises a signal."""
    stream = socket.socket(fileno=channel)
    try:
        stream.send(message, socket.MSG_NOSIGNAL)
    finally:
        stream.detach()


def _has_landlock() -> bool:
    try:
        return landlock.abi() > 0
    except OSError:
        return False


def warm_up(preload: Sequence[str]) -> None:
    """Import `preload` for every state, and seed the random generators so that steps are repeatable."""
    for name in preload:
        __import__(name)
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)
    gc.collect()
    gc.freeze()
