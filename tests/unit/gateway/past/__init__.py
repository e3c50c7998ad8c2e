"""Unit tests of the gateway's stored history: checkpoints, time cells and the index."""
