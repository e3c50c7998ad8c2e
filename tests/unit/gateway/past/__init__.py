"""What is kept of the past: checkpoints, cells of time and the index."""
