"""The nodes as columns, and the loops over these columns."""
