"""What the fold makes of an event, by concern; only `fold` calls what is here to change a state."""
