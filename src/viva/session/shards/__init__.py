"""Parts of a run: `--shard` makes them, `viva merge` joins them."""
