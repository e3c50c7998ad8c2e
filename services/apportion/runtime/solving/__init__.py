"""Prices from a linear program: the one solver, for schedulers and for who tries what they do."""
