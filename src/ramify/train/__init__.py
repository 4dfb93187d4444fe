"""Gradients of the policy that sampled a tree, to measure their noise. Needs the extra `hf`.

May import the pure rooms and the edges; only `cli` imports it. Read `policy_gradient.py` first.
"""
