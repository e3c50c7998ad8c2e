"""Unit tests of the verbs of the command line."""
