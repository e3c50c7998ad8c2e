"""What makes a grant true on this node, one module per thing that is made.

Every step may be repeated: the agent can be killed between any two of them, and what it finds
afterwards it takes over or makes anew. Invariant: nothing is taken from under a running container.
"""
