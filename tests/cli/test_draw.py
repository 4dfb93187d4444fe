from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from ramify.cli.draw import tree_view
from ramify.cli.terminal import shortened, visible
from ramify.cli.tree_columns import sorted_rows, tree_table
from ramify.core.codec import ByteCodec
from ramify.core.command import Fork, Grow, Score
from ramify.core.problem import Problem
from ramify.core.segment import Segment, ToolCall, Usage
from ramify.core.tree import ROOT, Step, Tree
from ramify.view.tree_values import COLUMNS, tree_values

CODEC = ByteCodec()
HOSTILE = "\x1b[31m[bold]\u202e\x00\x9b2J\n</calc>"


def segment(origin: str, text: str, entropy: float | None = None, call: ToolCall | None = None) -> Segment:
    ids = np.array(CODEC.encode(text), np.int32)
    if origin != "sampled":
        return Segment(origin, ids, tool_call=call)
    measures = {} if entropy is None else {"entropy": np.full(len(ids), entropy, np.float32)}
    logprobs = np.zeros(len(ids), np.float32)
    return Segment("sampled", ids, logprobs, measures, usage=Usage(1, len(ids), 3, 4))


def grown() -> Tree:
    """A root with two children, the first of which called a tool and ended below."""
    tree = Tree(Problem("p\x07", "what is \x1b[2J?"), CODEC, [segment("prompt", "q")], seed=1)
    first = tree.begin(0, Grow(ROOT, fork=Fork(2, "test")))
    second = tree.begin(1, Grow(ROOT, fork=0))
    assert first is not None
    assert second is not None
    called = ToolCall("calc", "1+1", result=HOSTILE)
    a = tree.add(Step((segment("sampled", "1+1" + HOSTILE, 0.5), segment("given", f" {HOSTILE}", call=called))), first)
    tree.add(Step((segment("sampled", "x", 0.0),), "answer", scores=(Score("judge", 1.0),)), tree.follow(a))
    unscored = Score("gold", None, is_oracle=True)
    tree.add(Step((segment("sampled", "y"),), "closed", scores=(unscored,), notes={"closed": "[b]"}), second)
    return tree


def drawn(tree: Tree, **settings: object) -> str:
    file = StringIO()
    Console(file=file, width=200, **settings).print(tree_view(tree))
    return file.getvalue()


def test_a_line_says_action_result_entropy_reward_and_stop_word():
    lines = drawn(grown()).splitlines()
    assert lines[1].lstrip("├└─ ").startswith("1 ⑂0 1+1␛[31m[bold]<Cf+202E>␀<Cc+009B>2J⏎</calc> → ␛[31m[bold]")
    assert "H 0.50" in lines[1]
    assert lines[2].endswith("2 x  H 0.00  judge 1.00  answer")
    assert lines[3].endswith("3 ⑂0 y  gold none oracle  closed: [b]")


def deep(number: int) -> Tree:
    tree = Tree(Problem("p", "q?"), CODEC, [segment("prompt", "q")], seed=1)
    place = tree.begin(0, Grow(ROOT))
    for turn in range(number):
        assert place is not None
        place = tree.follow(tree.add(Step((segment("sampled", f"turn{turn}"),)), place))
    return tree


def test_a_long_path_is_drawn_in_lines_of_bounded_width():
    assert len(drawn(deep(400))) < 5 * len(drawn(deep(100)))
    lines = drawn(deep(100)).splitlines()
    assert len(lines) == 101
    assert all(f"turn{turn} " in f"{lines[turn + 1]} " for turn in range(100))
    assert "under 79: 80 turn79" in lines[80]


def test_a_fault_of_an_engine_or_a_judge_is_told_in_its_own_words():
    tree = grown()
    fault = {"reason": "engine_raised", "fault": "engine_raised: KeyError: 'logits'"}
    third, fourth = (tree.begin(number, Grow(ROOT)) for number in (2, 3))
    assert third is not None
    assert fourth is not None
    tree.add(Step((), "engine_error", notes=fault), third)
    tree.add(Step((segment("sampled", "z"),), "answer", notes={"judge": "judge 'gold' returned 1.0"}), fourth)
    lines = drawn(tree).splitlines()
    assert lines[-2].endswith("engine_error: engine_raised: KeyError: 'logits'")
    assert lines[-1].endswith("z  judge 'gold' returned 1.0  answer")


def test_nothing_a_model_or_tool_wrote_acts_on_the_terminal():
    text = drawn(grown(), force_terminal=True, no_color=True)
    assert not [acting for acting in ("\x1b[31m", "\x1b[2J", "\u202e", "\x00", "\x07", "\x9b") if acting in text]


def test_a_summary_row_counts_and_averages():
    values = tree_values(grown(), 4)
    assert values.keys() == COLUMNS.keys()
    table = tree_table([values], ["tool"])
    cells = [str(next(iter(column.cells))) for column in table.columns]
    tokens = str(5 + len(HOSTILE.encode()))
    assert cells == ["4", "what is ␛[2J?", "4", "2", tokens, "1", "1.00", "1.00", "answer closed", "calc"]
    assert (values["worst"], values["depth"], values["forks"], values["uid"]) == (1.0, 2, 1, "p\x07")


def test_rows_without_a_value_come_last_in_both_orders():
    rows = [{"tree": 0, "reward": None}, {"tree": 1, "reward": 0.5}, {"tree": 2, "reward": 1.0}]
    assert [row["tree"] for row in sorted_rows(rows, "reward", is_descending=False)] == [1, 2, 0]
    assert [row["tree"] for row in sorted_rows(rows, "reward", is_descending=True)] == [2, 1, 0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a b", "a b"), ("a\tb", "a␉b"), ("\x7f", "␡"), ("\ue000", "<Co+E000>"), ("é世", "é世"), ("\ud800", "<Cs+D800>")],
)
def test_every_control_character_is_spelt(text: str, shown: str):
    assert visible(text) == shown


def test_kept_characters_stay_and_long_text_loses_its_middle():
    assert visible("a\nb", keep="\n") == "a\nb"
    assert shortened("x" * 10, 10) == "x" * 10
    assert shortened("abcdefghijklmnop", 9) == "abcde…nop"
