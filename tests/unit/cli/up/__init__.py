"""Unit tests of the verb `up`, which runs all services on one machine."""
