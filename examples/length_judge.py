"""A judge: short responses score higher. It sees no secret, so it is no oracle.

python examples/length_judge.py         (checks it against the contract of a judge)
"""

from ramify import Verdict


class Length:
    """1 for an empty response, 0 for one of `max_bytes` or more."""

    name = "length"
    is_oracle = False

    def __init__(self, max_bytes: int = 1000):
        self.max_bytes = max_bytes

    async def judge(self, branches, problem):
        lengths = [len(branch.said.encode()) for branch in branches]
        return [Verdict(max(0.0, 1 - n / self.max_bytes), {"bytes": float(n)}) for n in lengths]


if __name__ == "__main__":
    from ramify.testing import check_judge

    check_judge(Length)
