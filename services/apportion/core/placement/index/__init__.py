"""The nodes as columns, and the loops over them."""
