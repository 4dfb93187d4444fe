"""What every back end promises: states that never change, drafts that become states or leave nothing."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.workspaces.parts import HERE, SYSTEM, image, open_folder

from ramify.workspaces.back_ends import BackEnd, CopyFiles, FileDraft, OverlayFiles, WorkspaceState
from ramify.workspaces.command import CommandEnd, StopFlag, run
from ramify.workspaces.containers import Container, write_seccomp
from ramify.workspaces.layers import LayerStore, base_folder
from ramify.workspaces.process_watch import CommandLimits
from ramify.workspaces.shell_order import FIRST, CommandRules, ShellOrder
from ramify.workspaces.starter import CommandStarter
from ramify.workspaces.system import around, shell_of
from ramify.workspaces.tree import TreeFault, TreeLimits

LIMITS = TreeLimits(max_bytes=1 << 20, max_files=100)
OWNER = 0x7000_1234 if os.geteuid() == 0 else None


class Bench:
    """A back end with what runs commands on its drafts."""

    def __init__(self, make: Callable[[LayerStore, TreeLimits], BackEnd], folder: Path) -> None:
        self.store = LayerStore(folder, owner=OWNER)
        self.back_end = make(self.store, LIMITS)
        self.starter = CommandStarter()
        self.rules = CommandRules(
            limits=CommandLimits(),
            network="none",
            shell=shell_of(None),
            root=tuple(around(None, network="none", readable=())),
            has_own_users=True,
            owner=OWNER,
        )

    def run(self, draft: FileDraft, command: str) -> CommandEnd:
        stop = StopFlag()
        order = ShellOrder(rules=self.rules, draft=draft, command=command, variables=FIRST, is_tmp_kept=True)
        end = run(self.starter, order, timeout_s=30.0, stop=stop)
        stop.close()
        assert (end.ending, end.exit_code) == ("ended", 0), end
        return end

    def after(self, state: WorkspaceState, command: str) -> WorkspaceState:
        """The state after a command; the one before keeps its user."""
        draft = self.back_end.draft(state)
        self.run(draft, command)
        return self.back_end.keep(draft)


@pytest.fixture(params=HERE)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with open_folder() as folder:
        walls, _, files = request.param.rpartition(" ")
        made = Bench(OverlayFiles if files == "overlay" else CopyFiles, folder)
        if walls:
            seccomp = write_seccomp(walls, made.store.run / "seccomp.json")
            container = Container(walls, image(), SYSTEM, seccomp)
            made.rules = replace(made.rules, container=container)
        yield made
        made.starter.close()
        made.store.close()
        assert not list(base_folder(folder).iterdir())


def paths(state: WorkspaceState) -> set[bytes]:
    return {path.removeprefix(b"w/") for path in state.entries if path.startswith(b"w/")}


def test_a_state_never_changes_whatever_becomes_of_its_drafts(bench: Bench):
    first = bench.after(bench.back_end.start(None), "mkdir d; echo one > d/a; echo two > b")
    before = dict(first.entries)
    second = bench.after(first, "echo more >> d/a; rm b; mkdir b; echo > b/c")
    third = bench.after(first, "rm -r d; ln -s b d")
    assert paths(first) == {b"d", b"d/a", b"b"}
    assert paths(second) == {b"d", b"d/a", b"b", b"b/c"}
    assert paths(third) == {b"d", b"b"}
    assert first.entries == before
    assert first.read(b"w/d/a", 99) == b"one\n" and second.read(b"w/d/a", 99) == b"one\nmore\n"
    assert len({first.digest, second.digest, third.digest}) == 3


def test_ways_that_leave_the_same_files_leave_the_same_digest(bench: Bench):
    start = bench.back_end.start(None)
    short = bench.after(start, "mkdir d; echo one > d/a")
    long = bench.after(bench.after(bench.after(start, "mkdir d; echo no > d/b"), "rm -r d; mkdir d"), "echo one > d/a")
    assert short.digest == long.digest


@pytest.mark.parametrize(
    "change", ["echo x > a", "chmod 600 a", "mv a c", "ln -sf c l", "touch c", "mkfifo c", "mkdir c", "rm a"]
)
def test_every_change_of_the_files_moves_the_digest(bench: Bench, change: str):
    state = bench.after(bench.back_end.start(None), "echo one > a; ln -s a l")
    assert bench.after(state, change).digest != state.digest


def test_a_discarded_draft_leaves_nothing(bench: Bench):
    state = bench.back_end.start(None)
    draft = bench.back_end.draft(state)
    bench.run(draft, "echo > a")
    bench.back_end.discard(draft)
    assert paths(bench.after(state, "true")) == set()


def test_layers_without_users_are_removed(bench: Bench):
    state = bench.back_end.start(None)
    for number in range(4):
        after = bench.after(state, f"echo {number} > a")
        bench.back_end.release(state)
        state = after
    assert state.read(b"w/a", 9) == b"3\n"
    bench.back_end.hold(state)
    bench.back_end.release(state)
    assert bench.store.num_layers > 0
    bench.back_end.release(state)
    assert bench.store.num_layers == 0


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("truncate -s 600K a b", "more than 1048576 bytes"),
        ("seq 101 | xargs touch", "more than 100 files"),
    ],
)
def test_a_draft_beyond_a_limit_is_refused_and_discarded(bench: Bench, command: str, word: str):
    state = bench.back_end.start(None)
    draft = bench.back_end.draft(state)
    bench.run(draft, command)
    with pytest.raises(TreeFault, match=word):
        bench.back_end.keep(draft)
    bench.back_end.release(state)
    assert bench.store.num_layers == 0


def test_what_the_host_writes_is_in_the_state_and_moves_nothing_else(bench: Bench):
    state = bench.after(bench.back_end.start(None), "mkdir -m 700 d; echo old > d/a; echo b > d/b")
    draft = bench.back_end.draft(state)
    bench.back_end.write(draft, b"w/d/a", b"new\n", 0o644)
    bench.back_end.write(draft, b"w/e/f", b"", 0o600)
    after = bench.back_end.keep(draft)
    assert paths(after) == {b"d", b"d/a", b"d/b", b"e", b"e/f"}
    assert (after.entries[b"w/d"].mode, after.read(b"w/d/a", 9), after.read(b"w/d/b", 9)) == (0o700, b"new\n", b"b\n")
    assert bench.after(after, "test $(cat d/a) = new && test -w e/f").digest == after.digest


def test_a_file_of_the_same_size_that_the_host_writes_at_once_is_seen(bench: Bench):
    state = bench.after(bench.back_end.start(None), "printf aaaa > a")
    for text in (b"bbbb", b"cccc", b"dddd"):
        draft = bench.back_end.draft(state)
        bench.back_end.write(draft, b"w/a", text, 0o644)
        after = bench.back_end.keep(draft)
        assert after.read(b"w/a", 9) == text and after.digest != state.digest
        state = after
