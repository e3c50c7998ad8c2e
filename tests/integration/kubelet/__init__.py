"""Tests of a real agent with a fake kubelet, which runs no containers. The agent gives each
container exactly what the ledger decided."""
