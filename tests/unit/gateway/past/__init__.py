"""Unit tests of what the gateway stores about the past: checkpoints, counts of events over time,
and an index."""
