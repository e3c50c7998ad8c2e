"""On the chosen node: which devices each container gets."""
