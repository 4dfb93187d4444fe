"""The document of a tree holds the tree as it was grown, in numbers and texts that any page can read."""

import base64
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sharded.divided import config
from tests.store.growths import CODEC, RULES, STEPS, Live, answer, grow_randomly, observed, sampled, turn

from ramify.config.run_config import StrategyConfig
from ramify.core.codec import ByteCodec, Codec
from ramify.core.command import Close, Fork, Grow, Judge, Option
from ramify.core.segment import Segment, ToolCall, Usage, token_array
from ramify.core.tree import ROOT, Step, Tree
from ramify.core.visible import visible
from ramify.rows.row import Row, rows_of
from ramify.runner.folder import begin
from ramify.runner.saved import Saved
from ramify.runner.unread import UnreadCodec
from ramify.store.framing import decode, encode
from ramify.store.replay import Replayed, replay
from ramify.view import token_document
from ramify.view.documents import Documents
from ramify.view.tree_document import LABEL_WIDTH, tree_document

HOSTILE = "\x1b[31m[bold]\u202e\x00\x9b2J\u200b</script>\n<img src=x>"
UNSEEN = "\x00\x1b\x9b\u200b\u202e"
Document = dict[str, Any]


def replayed(live: Live, codec: Codec = CODEC) -> Replayed:
    """The tree as it is replayed from the bytes of its records."""
    lines: list[Any] = [decode(encode(record)) for record in live.records]
    lines[0] = msgspec.structs.replace(lines[0], codec_sha256=codec.sha256)
    return replay(lines, codec, RULES)[live.index]


def document(live: Live, codec: Codec = CODEC, **given: Any) -> Document:
    """The document, as a page reads it."""
    made = tree_document(replayed(live, codec), records=live.records, strategy=StrategyConfig(), **given)
    return json.loads(json.dumps(made, allow_nan=False))


def of_steps(*steps: Step, is_closed: bool = True) -> Live:
    """A tree of one path."""
    live = Live()
    (command,) = live.ask(Grow(ROOT))
    for step in steps:
        live.grow(command, step)
    live.end(command)
    if is_closed:
        live.shut()
    return live


def forked() -> Live:
    """A tree of two paths, of which the second leaves the first behind the third token of its first step."""
    live = of_steps(turn("1+1"), answer(), is_closed=False)
    (second,) = live.ask(Grow(2, at=live.tree.length(ROOT) + 3, fork=Fork(1, "late")))
    live.grow(second, answer("5"))
    live.end(second)
    live.shut()
    return live


# -- nodes and events -------------------------------------------------------------------------------------------------


def test_the_head_of_a_split_is_born_by_the_command_that_split_it():
    live = forked()
    shown = document(live)
    assert live.tree.parent(1) == 3
    assert shown["nodes"]["parent"] == [-1, 3, 1, 0, 3]
    assert shown["nodes"]["born"] == [0, 1, 1, 2, 3]
    assert [event["size"] for event in shown["events"]] == [1, 3, 4, 5]
    assert [event["nodes"] for event in shown["events"]] == [[], [1, 2], [3], [4]]
    assert shown["nodes"]["fork"] == [-1, -1, -1, -1, 0]
    assert (shown["forks"][0]["rule"], shown["forks"][0]["node"], shown["forks"][0]["is_post_hoc"]) == ("late", 3, True)


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_the_nodes_born_by_an_event_are_those_of_a_replay_up_to_it(seed: int, num_events: int):
    rng, live = Random(seed), Live()
    sizes: list[int] = []
    for _ in range(num_events):
        before = len(live.records)
        grow_randomly(live, rng)
        sizes += [len(live.tree) for record in live.records[before:] if type(record).__name__ != "GrownRecord"]
    shown = document(live)
    born = shown["nodes"]["born"]
    assert [event["size"] for event in shown["events"]] == sizes
    assert [sum(each <= number for each in born) for number in range(len(sizes))] == sizes
    assert shown["nodes"]["parent"] == [-1, *(live.tree.parent(node) for node in range(1, len(live.tree)))]


def test_commands_in_flight_are_told_with_where_they_began():
    live = of_steps(turn(), is_closed=False)
    first, second = live.ask(Grow(1, until="step"), Judge((1,), "exact"))
    live.grow(first, turn())
    shown = document(live)
    assert (shown["is_open"], shown["closed"], shown["reason"]) == (True, None, "")
    assert [(each["id"], each["node"], each["num_steps"]) for each in shown["pending"]] == [
        (first, 1, 1),
        (second, -1, 0),
    ]
    assert shown["pending"][0]["command"] == {"command": "grow", "node": 1, "until": "step"}
    assert (shown["rows"], shown["rows_refused"]) == ([], "rows are made when the tree is finished")
    live.end(first)
    assert [each["id"] for each in document(live)["pending"]] == [second]


def test_an_event_keeps_the_scores_that_were_weighed_then():
    live = of_steps(turn(), is_closed=False)
    live.ask(Grow(1, why=(Option(1, 0.25, (("q", 0.5), ("u", float("inf")))),)))
    live.ask(Close(0, "enough"))
    *_, asked, closed = document(live)["events"]
    assert asked["commands"][0]["why"] == [{"node": 1, "score": 0.25, "terms": [["q", 0.5], ["u", "inf"]]}]
    assert closed["commands"] == [{"command": "close", "node": 0, "reason": "enough"}]
    assert (asked["asked"], closed["asked"], closed["nodes"]) == (1, 2, [])


def test_measures_of_whole_steps_are_columns():
    shown = document(of_steps(turn(), replace(answer(), measures={"surprise": float("-inf")})))["nodes"]
    assert shown["step entropy"] == [None, 0.5, None]
    assert shown["step surprise"] == [None, None, None]
    logprobs = sampled("<calc>1+1</calc>").logprobs
    assert logprobs is not None
    assert shown["logprob"][1] == pytest.approx(float(np.mean(logprobs)), abs=1e-6)
    assert shown["entropy"][1] == pytest.approx(-float(np.mean(logprobs)), abs=1e-6)
    assert shown["logprob"][0] is None


# -- texts ------------------------------------------------------------------------------------------------------------


def test_a_label_spells_out_what_cannot_be_seen_and_other_texts_are_exact():
    call = replace(observed(HOSTILE), tool_call=ToolCall(HOSTILE, HOSTILE, result=HOSTILE))
    shown = document(of_steps(Step((sampled(HOSTILE), call), notes={HOSTILE: HOSTILE})))
    label = shown["nodes"]["label"][1]
    assert label.startswith("␛[31m[bold]<Cf+202E>␀<Cc+009B>2J<Cf+200B></script>⏎")
    assert not set(UNSEEN + "\n") & set("".join(shown["nodes"]["label"]))
    assert shown["notes"]["1"] == {HOSTILE: HOSTILE}
    assert shown["calls"]["1"][0]["tool"] == HOSTILE


def test_a_label_says_what_was_said_and_what_answered_it_within_its_width():
    shown = document(of_steps(turn("1+1"), replace(answer(), segments=(sampled("x" * 5000),))))
    assert shown["nodes"]["label"][:2] == [visible(shown["question"]), "calc 1+1 → 1+1"]
    assert len(shown["nodes"]["label"][2]) == LABEL_WIDTH


# -- numbers ----------------------------------------------------------------------------------------------------------


def steps_of_any_values() -> st.SearchStrategy[Step]:
    """Steps with any numbers, texts and ids. A segment counts its calls in a byte."""
    return STEPS.map(lambda step: replace(step, segments=tuple(replace(s, usage=Usage(1, 2)) for s in step.segments)))


@pytest.mark.slow
@given(st.integers(0, 2**32), st.lists(steps_of_any_values(), max_size=4), st.integers(0, 30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_tree_is_json_that_every_page_reads(seed: int, steps: list[Step], num_events: int, is_closed: bool):
    rng, live = Random(seed), Live()
    for _ in range(num_events):
        grow_randomly(live, rng)
    for parent in live.tree.expandable()[-1:]:
        (command,) = live.ask(Grow(parent))
        for step in steps:
            live.grow(command, step)
        if steps:
            live.end(command)
    if is_closed:
        live.shut("budget")
    shown = document(live, rows_of=rows_of)
    again = replayed(live)
    assert msgspec.json.decode(msgspec.json.encode(tree_document(again, strategy=StrategyConfig())))["tree"] == 0
    for chunk in range(len(shown["chunks"])):
        tokens = token_document.token_document(again.tree, chunk)
        assert json.loads(json.dumps(tokens, allow_nan=False)) == json.loads(msgspec.json.encode(tokens))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_cannot_hold_is_none(value: float):
    live = of_steps(replace(answer(), measures={"m": value}, notes={"n": (value, {1: value})}))
    shown = document(live)
    assert shown["notes"]["1"] == {"n": [None, {"1": None}]}
    assert shown["nodes"]["step m"] == [None, None]


def test_integers_that_a_page_cannot_hold_are_texts():
    live = Live(seed=2**64 - 1)
    (command,) = live.ask(Grow(ROOT))
    live.grow(command, replace(answer(), notes={"large": 2**60, "small": 7, "bytes": b"\xff\x00"}))
    live.end(command)
    shown = document(live)
    assert shown["seed"] == shown["nodes"]["seed"][0] == str(2**64 - 1)
    assert shown["notes"]["1"] == {"large": str(2**60), "small": 7, "bytes": "ff00"}


# -- training ---------------------------------------------------------------------------------------------------------


def trained(tree: Tree, rows: Sequence[Row]) -> dict[int, tuple[float, float]]:
    """Node -> loss weight and advantage of its sampled tokens, token by token, from all rows."""
    canonical, sums, numbers = (
        tree.subtree(),
        defaultdict[int, np.ndarray](lambda: np.zeros(2)),
        defaultdict[int, int](int),
    )
    for row in rows:
        for node, weight, advantage, is_sampled in zip(
            row.nodes.tolist(), row.weights, row.advantages, row.is_sampled, strict=True
        ):
            if is_sampled:
                sums[canonical[node]] += (weight, weight * advantage)
    for node in sums:
        numbers[node] = tree.num_sampled(node)
    return {node: (total[0] / numbers[node], total[1] / total[0]) for node, total in sums.items() if total[0]}


def check_training(shown: Document, tree: Tree, rows: Sequence[Row]) -> None:
    wanted = trained(tree, rows)
    assert wanted
    for node in range(len(tree)):
        weight, advantage = shown["nodes"]["weight"][node], shown["nodes"]["advantage"][node]
        if node in wanted:
            assert (weight, advantage) == pytest.approx(wanted[node])
        else:
            assert not weight
            assert advantage is None
    assert [row["leaf"] for row in shown["rows"]] == [row.leaf_id for row in rows]
    for told, row in zip(shown["rows"], rows, strict=True):
        assert len(set(told["nodes"])) == len(told["nodes"])
        assert (told["reward"], told["credit"], told["normaliser"]) == (row.reward, row.credit, row.normaliser)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the scripted agent."""
    path = tmp_path_factory.mktemp("tree_document") / "run"
    begin(config(), path)
    return path


def test_advantages_and_loss_weights_are_those_of_the_rows(whole: Path):
    documents, saved = Documents.open([whole]), Saved.open(whole)
    list(documents.look())
    for number, tree in saved.numbered_trees():
        rows = saved.rows_of(tree)
        shown = documents.get(f"run/0/tree/{number}")
        assert shown["rows_refused"] == ""
        if rows:
            check_training(shown, tree, rows)


@pytest.mark.parametrize("policy", ["once", "fraction", "per_leaf"])
def test_a_step_sampled_by_two_versions_of_the_weights_counts_once(policy: Any):
    """It has a segment for each version."""
    both = Step((replace(sampled("ab"), version=1), replace(sampled("cde"), version=2), observed("f")))
    live = Live()
    (first,) = live.ask(Grow(ROOT))
    live.grow(first, both)
    live.end(first)
    for command, step in zip(
        live.ask(Grow(1, fork=Fork(2, "rule")), Grow(1, fork=0)),
        (answer(), replace(answer("5"), scores=(replace(answer().scores[0], value=0.0),))),
        strict=True,
    ):
        live.grow(command, step)
        live.end(command)
    live.shut()
    make = lambda tree: rows_of(tree, policy=policy)  # noqa: E731
    shown = document(live, rows_of=make)
    check_training(shown, live.tree, make(replayed(live).tree))
    assert shown["nodes"]["version"] == [None, 2, None, None]


def test_a_tree_whose_ids_only_carry_text_says_why_it_has_no_rows():
    shown = document(of_steps(answer()), ByteCodec(is_exact=False), rows_of=rows_of)
    assert (shown["rows"], shown["nodes"]["weight"]) == ([], [None, None])
    assert "only carries text" in shown["rows_refused"]


def test_a_broken_tree_says_so_and_is_not_exact():
    live = of_steps(turn(), answer(), is_closed=False)
    live.shut("engine_error")
    shown = document(live, rows_of=rows_of)
    assert (shown["is_open"], shown["is_broken"], shown["reason"]) == (False, True, "engine_error")
    assert shown["rows_refused"] or all(row["reasons"] for row in shown["rows"])


# -- tokens -----------------------------------------------------------------------------------------------------------


def segments_of(shown: Document, node: int) -> list[Document]:
    return shown["nodes"][node - shown["first"]]["segments"]


def bytes_of(packed: str) -> bytes:
    """Numbers whose bytes are grouped by their places, as they stand on disk."""
    return np.frombuffer(base64.b64decode(packed), np.uint8).reshape(4, -1).T.tobytes()


def array(packed: str, kind: str) -> list[Any]:
    return np.frombuffer(bytes_of(packed), kind).tolist()


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 5), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_token_documents_hold_every_node_once(lengths: list[int], max_nodes: int, max_tokens: int):
    tree = replayed(of_steps(*(Step((sampled("x" * length),)) for length in [*lengths, 1]))).tree
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_document, "MAX_NODES", max_nodes)
        patch.setattr(token_document, "MAX_TOKENS", max_tokens)
        firsts = token_document.chunks(tree)
        found = [token_document.token_document(tree, number) for number in range(len(firsts))]
        with pytest.raises(IndexError, match="not"):
            token_document.token_document(tree, len(firsts))
    assert [each["first"] for each in found] == firsts
    nodes = [node for each in found for node in each["nodes"]]
    assert len(nodes) == len(tree)
    for node, shown in enumerate(nodes):
        (segment,) = shown["segments"]
        assert array(segment["ids"], "<i4") == tree.segments(node)[0].ids.tolist()
    for each in found:
        num_tokens = sum(len(array(segment["ids"], "<i4")) for node in each["nodes"] for segment in node["segments"])
        assert len(each["nodes"]) == 1 or (len(each["nodes"]) <= max_nodes and num_tokens <= max_tokens)


def test_tokens_are_exact_to_the_bit():
    values = np.array([0x7FC00001, 0xFF800000, 0x80000000, 1], np.uint32).view(np.float32)
    segment = Segment(
        "sampled",
        token_array([-(2**31), 2**31 - 1, 256, 300]),
        logprobs=values,
        measures={"m": -values},
        seed=2**64 - 1,
    )
    (shown,) = segments_of(token_document.token_document(replayed(of_steps(Step((segment,)))).tree, 0), 1)
    assert array(shown["ids"], "<i4") == segment.ids.tolist()
    assert bytes_of(shown["logprobs"]) == values.tobytes()
    assert bytes_of(shown["measures"]["m"]) == (-values).tobytes()
    assert shown["seed"] == str(2**64 - 1)


def test_a_character_that_is_spread_over_several_tokens_is_spelt_in_bytes():
    tree = replayed(of_steps(Step((sampled("né"),)))).tree
    shown = token_document.token_document(tree, 0)
    words = {word[0]: word[1:] for word in shown["vocabularies"]["bytes"]}
    assert words[ord("n")] == ["n"]
    assert [words[byte] for byte in "é".encode()] == [[None, "c3"], [None, "a9"]]
    assert [len(word) for word in shown["vocabularies"]["bytes"]].count(3) == 2


def test_a_tokenizer_that_was_not_read_spells_the_numbers_of_its_tokens():
    codec = UnreadCodec("other/model", "e" * 64)
    live = of_steps(Step((replace(sampled("ab"), ids=token_array([17, 70001])),)))
    shown = token_document.token_document(replayed(live, codec).tree, 0)
    assert shown["vocabularies"]["other/model"][-2:] == [[17, "⟨17⟩"], [70001, "⟨70001⟩"]]
    assert document(live, codec)["nodes"]["label"][1] == "⟨17⟩⟨70001⟩"
    assert (document(live, codec)["codec"], document(live, codec)["codec_sha256"]) == ("other/model", "e" * 64)
