"""What the agent's hands make on the node's disk and in its driver."""
