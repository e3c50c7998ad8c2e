"""Unit tests of the agent's NVIDIA backend over a fake driver."""
