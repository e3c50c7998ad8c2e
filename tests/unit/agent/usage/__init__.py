"""What the agent sees of the use of shares."""
