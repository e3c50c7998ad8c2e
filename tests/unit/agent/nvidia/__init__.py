"""Unit tests of the agent's NVIDIA backend, which run over a fake driver."""
