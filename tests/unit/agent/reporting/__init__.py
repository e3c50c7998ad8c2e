"""Unit tests of the events that an agent appends and folds."""
