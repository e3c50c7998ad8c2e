"""Unit tests of the binder, which carries out the schedulers' placements."""
