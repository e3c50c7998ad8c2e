"""Apply grants on this node, one module for each thing that is made.

Every step can be repeated: the agent may be killed between any two, and then reuses or remakes
what it finds. Invariant: nothing is taken away from a running container."""
