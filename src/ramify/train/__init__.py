"""Gradients of the policy that sampled a tree, to measure their noise (extra `hf`), and to train (extra `train`).

May import every room but `gateway`, `view` and `cli`; only `cli` imports it. `loop.py` trains, `policy_gradient.py`
measures.
"""
