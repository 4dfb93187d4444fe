"""Searches against real servers."""

import pytest
from bench.real_replicas import Served
from tests.runner.test_whole_searches import CODE, SEARCHES, check_answers, check_code, searched

from ramify.store.check import tree_faults

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_answers_by_real_servers(name: str, replicas: Served) -> None:
    check_answers(searched(name, replicas.flags()))


def test_steps_of_code_sampled_by_real_servers_are_run_by_python(replicas: Served) -> None:
    found = searched("rstar_mcts", replicas.flags(**CODE))
    check_answers(found, share_answered=0.5)
    check_code(found)


def test_paths_of_tokens_are_judged_by_a_chat_endpoint(replicas: Served) -> None:
    critic = {"name": "openai", "model": replicas.model.name, "base_url": f"{replicas.urls[0]}/v1"}
    grade = {
        "engine": "critic",
        "edge": "quotes",
        "role": "judge",
        "template": "{question} {previous}",
        "max_tokens": 8,
    }
    given = {
        "engines.critic": critic,
        "actions.grade": grade,
        "judges.critic": {"kind": "llm", "options": {"mode": "self_reward", "action": "grade", "max_replies": 2}},
        "strategy.options": {"n": 4, "judge": "critic"},
    }
    found = searched("best_of_n", replicas.flags(**given))
    assert not found.report.failed_trees
    for tree in found.trees:
        codecs = {tree.role(node): tree.branch(node).codec.name for node in tree.subtree()}
        assert codecs == {"policy": tree.codec.name, "judge": "bytes"}
        assert 4 <= tree.spent()["judge"].engine_calls <= 8
        assert list(tree_faults(tree)) == []
    assert {row.codec_sha256 for row in found.rows()} == {found.trees[0].codec.sha256}
