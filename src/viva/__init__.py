"""Viva examines AI agents by talking to them."""

__version__ = "0.1.0"
