"""Agents that live in a terminal: one process a turn, one dialect for each CLI, one model of events for all of them."""
