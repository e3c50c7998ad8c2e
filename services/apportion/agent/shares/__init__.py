"""Applies grants on this node, with one module for each kind of resource.

Invariant: every step can be repeated, and a running container keeps everything that it has."""
