"""Apply grants on this node, with one module for each thing that is made.

Invariant: every step can be repeated, and nothing is taken away from a running container."""
