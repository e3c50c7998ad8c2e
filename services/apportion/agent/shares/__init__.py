"""Apply grants on this node, one module for each thing that is made.

Invariant: every step can be repeated, and nothing is taken away from a running container."""
