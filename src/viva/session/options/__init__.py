"""The options of a run: their table, checks of their values, and what a journal saves of them."""
