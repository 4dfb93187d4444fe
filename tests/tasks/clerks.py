"""Scripted agents for `ledgers`: one that carries out every order, one that now and then errs."""

import re

from ramify.testing.scripts import ScriptedTurn

ORDER = re.compile(r"order \d+ of \d+: ([a-z0-9 ]+)")
CLOSED = re.compile(r"the book is closed: answer ([a-z0-9+* ]+)")
CODE = {
    r"add (\d+) to (\w+)": 'ledger["{1}"] += {0}',
    r"take (\d+) from (\w+)": 'ledger["{1}"] -= {0}',
    r"move (\d+) from (\w+) to (\w+)": 'ledger["{1}"] -= {0}\nledger["{2}"] += {0}',
    r"double (\w+)": 'ledger["{0}"] *= 2',
    r"swap (\w+) and (\w+)": 'ledger["{0}"], ledger["{1}"] = ledger["{1}"], ledger["{0}"]',
}
"""What an order says -> what carries it out."""
SLIP = "\nledger[min(ledger)] += 1  # a slip"


def code_of(order: str) -> str:
    """Python that carries an order out."""
    for pattern, code in CODE.items():
        if found := re.fullmatch(pattern, order):
            return code.format(*found.groups())
    raise AssertionError(order)


def clerk(turn: ScriptedTurn) -> str:
    """Carry out the last order; when the book is closed, work the answer out in the session and give it."""
    shown = turn.context.rpartition("<result>")[2]
    if (closed := CLOSED.search(shown)) is None:
        return f"<python>{code_of(ORDER.findall(turn.context)[-1])}</python>"
    if worked_out := re.search(r"^it is (-?\d+)$", shown, re.MULTILINE):
        return f"<answer>{worked_out[1]}</answer>"
    expression = re.sub(r"[a-z]+", lambda name: f'ledger["{name[0]}"]', closed[1])
    return f'<python>print("it is", {expression})</python>'


def careless(turn: ScriptedTurn) -> str:
    """As the clerk, but one order in six is carried out with a slip."""
    said = clerk(turn)
    is_order = said.startswith("<python>ledger")
    return said.replace("</python>", f"{SLIP}</python>") if is_order and turn.seed % 6 == 0 else said
