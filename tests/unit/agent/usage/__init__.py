"""Unit tests of how the agent measures the usage of shares."""
