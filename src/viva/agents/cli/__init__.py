"""Agents that are CLIs: one process for each turn, one `CliSpec` for each CLI, one set of events for all."""
