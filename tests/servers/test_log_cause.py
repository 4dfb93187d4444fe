"""The line of a server's log that says why it ended."""

import pytest

from ramify.servers.log_cause import cause_of

CORE = "(EngineCore pid=7) ERROR 11-23 20:00:01 [core.py:842]"
END = [
    "(EngineCore pid=7) Process EngineCore:",
    "(APIServer pid=1) Traceback (most recent call last):",
    '(APIServer pid=1)   File "/x/api_server.py", line 1919, in <module>',
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "[rank0]:[W1123] Warning: WARNING: destroy_process_group() was not called before program exit",
    "/usr/lib/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked",
]


ILLEGAL = "Fatal Python error: Illegal instruction"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
PORT = "OSError: [Errno 98] Address already in use"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["INFO loading", ILLEGAL, "Thread 0x1:", *['  File "x", line 3'] * 130, *END], ILLEGAL),
        ([f"{CORE} it failed to start.", f"{CORE} ValueError: no room", *END], f"{CORE} ValueError: no room"),
        ([MEMORY, *END], MEMORY),
        ([PORT, "INFO: Shutting down"], PORT),
        (
            [
                "ValueError: before",
                "RuntimeError: Engine core initialization failed. Failed core proc(s): {'Core_0': -4}",
            ],
            "one of its processes died of SIGILL",
        ),
        (["RuntimeError: Engine core proc EngineCore died, exitcode -11"], "one of its processes died of SIGSEGV"),
        (["ended with exit code -99"], "one of its processes died of signal 99"),
        (["error: the model is not there"], "error: the model is not there"),
        (["KeyError: 'first'", "ValueError: second", "INFO fine"], "ValueError: second"),
        (["ValueError: " + "x" * 5000], "ValueError: " + "x" * 488),
    ],
)
def test_the_cause_is_a_signal_or_the_last_exception_that_is_no_echo(lines: list[str], cause: str) -> None:
    assert cause_of(lines).startswith(cause)
    assert len(cause_of(lines)) < 600


@pytest.mark.parametrize("lines", [["all is well", "INFO: Shutting down"], [], END[:3]])
def test_a_log_that_says_no_cause_has_none(lines: list[str]) -> None:
    assert cause_of(lines) == ""


@pytest.mark.parametrize(("line", "helps"), [(ILLEGAL, "float32"), (MEMORY, "--max-model-len"), (PORT, "--port")])
def test_what_helps_is_said_where_it_is_known(line: str, helps: str) -> None:
    assert helps in cause_of([line, *END])
