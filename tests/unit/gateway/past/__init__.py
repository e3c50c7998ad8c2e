"""Stored past: checkpoints, time cells and the index."""
