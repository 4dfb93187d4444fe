"""The version of ramify, stated once."""

__version__ = "0.2.0"
