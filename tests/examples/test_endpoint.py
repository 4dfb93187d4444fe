"""The example of an endpoint runs against one."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.engines.endpoint import Endpoint, said

EXAMPLE = Path(__file__).parents[2] / "examples" / "endpoint.py"


@pytest.mark.slow
def test_a_question_is_put_to_an_endpoint():
    turns = ["<calc>4*6", "<calc>24*1", "<answer>24"]
    with Endpoint(lambda body: said(turns[len(body["messages"]) // 2 - 1])) as endpoint:
        arguments = [sys.executable, "-W", "error", str(EXAMPLE), endpoint.url, "m", "make 24 from 4 6 1"]
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("reward 1.0, ended by answer") == 4
    assert "  user: <result>\n24 : 1 24\n</result>\n  assistant: <calc>24*1</calc>" in done.stdout
    assert len(endpoint.requests) == 12
