"""Creates the files, daemons, instances and limits of a node's shares, one module per kind.

Invariant: every step can be repeated, and a running container keeps everything that it has."""
