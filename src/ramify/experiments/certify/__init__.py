"""Certify: whether a strategy with a credit estimates the policy gradient exactly, found on small decision problems.

May import what `experiments` may. Read `decision_problem` first, then `replay` and `certification`.
"""

from ramify.experiments.certify.certificate import Certificate, GradientComponent, Verdict
from ramify.experiments.certify.certification import CertifyLimits, Subject, certify, certify_credits
from ramify.experiments.certify.decision_problem import PROBLEMS, DecisionProblem, problem_named
from ramify.experiments.certify.reductions import REDUCTIONS

__all__ = [
    "PROBLEMS",
    "REDUCTIONS",
    "Certificate",
    "CertifyLimits",
    "DecisionProblem",
    "GradientComponent",
    "Subject",
    "Verdict",
    "certify",
    "certify_credits",
    "problem_named",
]
