"""The functions that apply one type of event each; only `fold` may call them."""
