"""A tool with a state that is copied when a path forks: it counts the calls of its branch.

python examples/counter_tool.py         (checks it against the contract of a tool)
"""

from ramify import ToolResult


class Counter:
    """`open` makes the state of a branch, `fork` copies it."""

    name = "counter"
    branching = "fork"

    async def open(self, problem):
        return Count()


class Count:
    def __init__(self, calls=()):
        self.calls = list(calls)

    async def call(self, arguments):
        self.calls.append(arguments)
        return ToolResult(f"call {len(self.calls)}; the one before was {self.calls[-2:-1]}")

    async def fork(self):
        return Count(self.calls)

    async def close(self):
        self.calls.clear()


if __name__ == "__main__":
    from ramify.testing import check_tool

    check_tool(Counter)
