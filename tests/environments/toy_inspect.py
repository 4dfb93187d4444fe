"""A toy file of tasks of Inspect, as text: the tests write it to a folder."""

COUNTER = '''
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, mean, scorer
from inspect_ai.solver import basic_agent, generate, system_message, use_tools
from inspect_ai.tool import ToolError, tool
from inspect_ai.util import sandbox, store


@tool
def add():
    async def execute(number: int) -> str:
        """Add a number to the sum.

        Args:
            number: From 0 to 9.
        """
        if not 0 <= number <= 9:
            raise ToolError(f"{number} is not from 0 to 9")
        store().set("sum", store().get("sum", 0) + number)
        store().get("seen", []).append(number)
        return f"the sum is {store().get('sum')} after {len(store().get('seen'))} numbers"

    return execute


@tool
def note():
    async def execute(text: str) -> str:
        """Append a line to the notes.

        Args:
            text: The line.
        """
        try:
            old = await sandbox().read_file("notes.txt")
        except FileNotFoundError:
            old = ""
        await sandbox().write_file("notes.txt", old + text + "\\n")
        return f"{len(old.splitlines()) + 1} lines"

    return execute


@scorer(metrics=[accuracy()])
def is_reached():
    async def score(state, target: Target):
        is_it = state.store.get("sum", 0) == int(target.text)
        return Score(value="C" if is_it else "I", answer=state.output.completion)

    return score


@scorer(metrics={"*": [mean()]})
def several():
    async def score(state, target: Target):
        return Score(value={"sum": state.store.get("sum", 0), "words": len(state.output.completion.split())})

    return score


def samples():
    return [Sample(input=f"Reach {7 + i}.", target=str(7 + i)) for i in range(20)]


@task
def counter():
    return Task(
        dataset=samples(),
        solver=[system_message("You add numbers."), use_tools(add()), generate()],
        scorer=is_reached(),
    )


@task
def agent():
    return Task(dataset=samples(), solver=basic_agent(tools=[add()]), scorer=[is_reached(), several()])


@task
def noted():
    return Task(
        dataset=samples(), solver=[use_tools(add(), note()), generate()], scorer=several(), sandbox="local"
    )
'''
