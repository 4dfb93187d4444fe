"""Gradients of the policy that sampled a tree, for measurements of their noise. Needs the extra `hf`.

May import the pure rooms and the edges; only `cli` imports it. Read `policy_gradient.py` first.
"""
