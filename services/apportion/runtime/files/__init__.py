"""Read and write files, within limits."""
