"""Unit tests of the verbs that set up an installation."""
