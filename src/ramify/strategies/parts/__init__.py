"""What several methods share: named functions, and small state machines such as levels of paths.

Public: a strategy of your own may import anything here (docs/strategies.md). A part never imports a method.
"""
