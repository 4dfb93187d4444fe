"""OpenRLHF: rows of trees as its batches of experience, and a check of its arguments. See
docs/coming-from/openrlhf.md.

May import what `integrations` may, and torch. Read `experience.py`.
"""

from ramify.integrations.openrlhf.experience import check_arguments, experience

__all__ = ["check_arguments", "experience"]
