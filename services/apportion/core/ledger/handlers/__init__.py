"""The functions that fold events, one per type of event; only `fold` may call them."""
