"""Unit tests of the verbs that predict what the schedulers would do."""
