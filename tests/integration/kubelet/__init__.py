"""A real agent with a fake kubelet that runs no containers: the agent gives exactly what the ledger
decided."""
