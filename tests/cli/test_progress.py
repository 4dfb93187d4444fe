"""The bar of a run: trees, and the rounds of those that know how many they have."""

import pytest
from tests.strategies.world import bare_tree

from ramify.cli.progress import RunProgress
from ramify.cli.terminal import terminal
from ramify.core.strategy import Phase
from ramify.runner.events import PhaseBegan, TreeClosed, TreeOpened


@pytest.mark.covers("S2.6")
def test_the_bar_moves_with_the_rounds_of_a_search() -> None:
    progress = RunProgress(terminal(), title="mctsr", num_trees=2)
    progress.observe(TreeOpened(0, bare_tree()))
    assert progress.tally().completed == 0
    progress.observe(PhaseBegan(0, Phase("expansion", 4, 16), 3))
    assert progress.tally().completed == 0.25
    assert progress.tally().state.endswith("| expansion 4 of 16")
    progress.observe(TreeOpened(1, bare_tree()))
    progress.observe(PhaseBegan(1, Phase("expansion", 2), 3))
    assert progress.tally().completed == 0.25
    assert progress.tally().state.endswith("| expansion: 2")
    progress.observe(TreeClosed(0, bare_tree()))
    assert progress.tally().completed == 1
