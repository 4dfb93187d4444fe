"""Math worker: a killable process in which math-verify compares answers.

The script needs only the standard library and math-verify. It prints a line when it is ready. Then it answers each JSON
line, `{"gold": [...], "answer": "..."}`, with one line: `{"is_same": bool, "is_read": bool}`, or `{"fault": text}`. It
exits when its input ends, even while it is busy. Gold comes first, because math-verify's comparison is not symmetric.
"""

import json
import logging
import os
import queue
import re
import resource
import sys
import threading
from typing import Any

MAX_BYTES = 4 << 30
"""Limit of the address space: an answer such as 9**9**9**9 is a fault and does not exhaust the machine's memory."""

_DELIMITED = re.compile(r"\$|\\\(|\\\[|\\boxed|\n")


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    logging.disable(logging.CRITICAL)
    from math_verify import parse, verify

    def parsed(text: str) -> list[Any]:
        """Parse the whole answer as an expression. If it has delimiters or does not parse, search for one in it."""
        tries = (text,) if _DELIMITED.search(text) else (f"${text}$", text)
        return next((found for each in tries if (found := parse(each, parsing_timeout=0))), [])

    def compared(gold: list[str], answer: str) -> dict[str, Any]:
        found = parsed(answer)
        is_same = any(verify(known, found, timeout_seconds=0) for one in gold if (known := parsed(one)))
        return {"is_same": bool(found) and is_same, "is_read": bool(found)}

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    _say({"is_ready": True})
    while True:
        asked = json.loads(lines.get())
        try:
            _say(compared(asked["gold"], asked["answer"]))
        except Exception as error:  # noqa: BLE001 - boundary to math-verify and sympy, which may raise anything
            _say({"fault": f"{type(error).__name__}: {error}"[:300]})


def _read(lines: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
