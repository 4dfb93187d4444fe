"""A tree that grows on the screen: every step is drawn as it arrives, and pacing changes no answer."""

import asyncio
from io import StringIO

from rich.console import Console
from tests.strategies.world import bare_tree, sampled_step, text_step

from ramify.cli.live_tree import LiveTree, Paced
from ramify.cli.plain_tree import GrowingPath, plain_tree, verdict
from ramify.cli.terminal import Terminal
from ramify.core.command import Fork, Grow, Score
from ramify.core.engine import Request
from ramify.core.growth import Asked
from ramify.core.segment import token_array
from ramify.core.tree import ROOT, Tree
from ramify.runner.events import CommandsAsked, StepGrown, TreeOpened
from ramify.testing.clock import run_virtual
from ramify.testing.scripted import Scripted


def drawn(tree: Tree, *growing: GrowingPath) -> list[str]:
    file = StringIO()
    Console(file=file, width=120).print(plain_tree(tree, growing))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def forked() -> Tree:
    tree = bare_tree()
    first = tree.begin(0, Grow(ROOT, fork=Fork(2, "test")))
    second = tree.begin(1, Grow(ROOT, fork=0))
    assert first is not None
    assert second is not None
    node = tree.add(text_step("<calc>1+2</calc>"), first)
    for number, (text, reward) in enumerate((("<answer>3</answer>", 1.0), ("\x1b[2J", 0.0))):
        place = tree.begin(number + 2, Grow(node))
        assert place is not None
        tree.add(text_step(text, stop="answer", scores=(Score("judge", reward),)), place)
    tree.add(text_step("long", stop="length"), second)
    return tree


def test_a_plain_tree_says_actions_forks_and_who_was_right() -> None:
    assert drawn(forked()) == [
        "make 3 from 1 2",
        "├── calc 1+2  ⑂ forked",
        "│   ├── answer 3  right, reward 1",
        "│   └── ␛[2J  wrong, reward 0",
        "└── long  length",
    ]
    assert verdict(0.25) == "reward 0.25"


def test_steps_in_flight_are_drawn_below_the_node_where_they_began() -> None:
    steps = [sampled_step(2, entropy=0.1, stop=None), text_step("end", stop="answer", scores=(Score("judge", 1.0),))]
    lines = drawn(forked(), GrowingPath(1, steps))
    assert lines[4].startswith("│   └── ") and lines[4].endswith("→ =")
    assert lines[5] == "│       └── end  right, reward 1"


def test_the_screen_shows_a_step_before_its_command_has_ended() -> None:
    screen = Console(file=StringIO(), force_terminal=True, width=80, color_system=None)
    with LiveTree(Terminal(screen, Console(file=StringIO()))) as live:
        live.observe(TreeOpened(0, bare_tree()))
        live.observe(CommandsAsked(0, Asked(0, (Grow(ROOT), Grow(ROOT)))))
        live.observe(StepGrown(0, 1, 0, text_step("second")))
        live.observe(StepGrown(1, 1, 0, text_step("of another tree")))
    assert isinstance(screen.file, StringIO)
    shown = screen.file.getvalue()
    assert "└── second" in shown
    assert "another" not in shown


def test_paced_answers_come_one_by_one_until_the_time_is_used_up() -> None:
    async def arrivals() -> list[float]:
        loop, engine = asyncio.get_running_loop(), Paced(Scripted(), step_s=1.0, most_s=2.5)
        times: list[float] = []

        async def ask(seed: int) -> None:
            await engine.generate(Request(token_array([97]), 4, seed))
            times.append(round(loop.time() - began, 3))

        began = loop.time()
        await asyncio.gather(*(ask(seed) for seed in range(5)))
        return times

    assert run_virtual(arrivals()) == [1.0, 2.0, 2.5, 2.5, 2.5]
