"""Event handlers of the fold; only `fold` may call them to change a state."""
