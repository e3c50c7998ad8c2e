"""Creates on this node what containers get with their shares, one module per kind of resource.

Invariant: every step can be repeated, and a running container keeps everything that it has."""
