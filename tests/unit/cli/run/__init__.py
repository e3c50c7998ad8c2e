"""Unit tests of the verb `run`."""
