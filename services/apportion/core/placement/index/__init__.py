"""Index the nodes as columns, with the loops over these columns."""
