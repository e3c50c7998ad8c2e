"""Index the nodes as numpy columns, and provide the compiled loops over these columns."""
