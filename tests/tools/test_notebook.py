from ramify.core.problem import Problem
from ramify.core.tool import ToolResult
from ramify.testing.clock import run_virtual
from ramify.testing.notebook import MAX_NOTES, USAGE, Notebook


def said(*calls: str) -> list[ToolResult]:
    async def main() -> list[ToolResult]:
        session = await Notebook().open(Problem("p", "q"))
        return [await session.call(call) for call in calls]

    return run_virtual(main())


def test_notes_are_written_read_and_found() -> None:
    texts = [
        r.text for r in said("read", "write Fikol is the mayor", " write  town: Lazul ", "read", "find lazul", "find x")
    ]
    assert texts == [
        "no notes",
        "note 1 written",
        "note 2 written",
        "1. Fikol is the mayor\n2. town: Lazul",
        "2. town: Lazul",
        "no notes",
    ]


def test_other_calls_are_errors_that_say_how() -> None:
    assert said("", "write", "find ", "read all", "erase 1") == [ToolResult(USAGE, "error")] * 5


def test_a_notebook_has_a_last_page() -> None:
    *_, last, over = said(*["write x"] * (MAX_NOTES + 1))
    assert (last.status, over.status) == ("ok", "error")
