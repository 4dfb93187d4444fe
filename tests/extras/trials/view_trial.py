"""The viewer sends its page and the documents of a run."""

import json
import subprocess
from urllib.request import urlopen

from console import RAMIFY, ramify

ramify("rollout", "--preset", "chains", "--prompts", "2", "--out", "run")
with subprocess.Popen([RAMIFY, "view", "run", "--json", "-q"], stdout=subprocess.PIPE, text=True) as server:
    try:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        assert "url" in told, told["error"]
        with urlopen(told["url"], timeout=60) as page:
            assert b"<title>ramify</title>" in page.read()
        with urlopen(f"{told['url']}documents/run/0", timeout=60) as document:
            assert json.load(document)["num_trees"] == 2
    finally:
        server.terminate()
