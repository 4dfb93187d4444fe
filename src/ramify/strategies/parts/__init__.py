"""Parts that several methods share: functions, and small state machines such as a search by levels.

Public: your own strategy may import anything from here (docs/guides/strategy.md). A part never imports a method.
"""
