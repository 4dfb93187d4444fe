"""Log cause: the line of a server's log that says why the server ended.

A server that dies says so once and then reports its shutdown in a hundred lines: other processes that miss it, threads,
what was not freed. The cause is the last signal that is named, or else the last exception that is no echo of another
process's end, or else the last line of level ERROR.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from typing import Final

MAX_LINE_CHARS: Final = 500
SIGNALS: Final = re.compile(
    r"Fatal Python error: |Illegal instruction|Segmentation fault|Segfault encountered|Bus error|oom-kill|"
    r"\bSIG(ILL|SEGV|BUS|ABRT|FPE)\b",
    re.IGNORECASE,
)
EXCEPTIONS: Final = re.compile(
    r"(^|[\s\]\x1bm])([A-Za-z_][\w.]*\.)?[A-Z]\w*(Error|Exception|Refused|Failure)(:\s|\()\s*\S"
)
DIED: Final = re.compile(r"(?:exit ?code|core proc\(s\)).{0,60}?[\s:=({'\"]-(\d{1,2})\b", re.IGNORECASE)
"""How a process of a server says by which signal another one died: vLLM's `Failed core proc(s): {'EngineCore': -4}`."""
ERRORS: Final = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b|^error: ", re.MULTILINE)
ECHOES: Final = re.compile(
    r"root cause above|engine core initialization failed|engine process failed|EngineDeadError|ChildProcessError|"
    r"shut(ting)? ?down|shutdown|terminated by|leaked|resource_tracker|destroy_process_group|SystemExit|"
    r"KeyboardInterrupt|CancelledError|BrokenPipeError|ConnectionResetError|EOFError|GeneratorExit|Exception ignored|"
    r"During handling of|another exception|atexit|__del__",
    re.IGNORECASE,
)
"""Lines that other parts of a server say because it ends."""
HELPS: Final = (
    (r"illegal instruction|sigill", "this processor lacks an instruction that the build uses: try --dtype float32"),
    (r"out of memory|oom-kill|cannot allocate|MemoryError", "too little memory: try a smaller --max-model-len"),
    (r"address already in use", "another program has the port: try another --port"),
    (r"bfloat16.*(not|un)\W*support|not support.*bfloat16", "try --dtype float32"),
)
"""What is said -> what helps."""


def cause_of(lines: Iterable[str]) -> str:
    """The line that says why, and what helps where that is known; '' = no line says it."""
    every = [line.strip() for line in lines]
    said = [line for line in every if not ECHOES.search(line)]
    found = _last(SIGNALS, said) or _signalled(every) or _last(EXCEPTIONS, said) or _last(ERRORS, said)
    found = found[:MAX_LINE_CHARS]
    helps = next((text for words, text in HELPS if re.search(words, found, re.IGNORECASE)), None)
    return found if helps is None else f"{found}\n({helps})"


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    return next((line for line in reversed(lines) if pattern.search(line)), "")


def _signalled(lines: Sequence[str]) -> str:
    """Which signal ended a process of the server, in our words; '' = no line says one."""
    if not (found := DIED.search(_last(DIED, lines))):
        return ""
    number = int(found[1])
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"one of its processes died of {name}"
