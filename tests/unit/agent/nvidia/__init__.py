"""Unit tests of the agent's NVIDIA backend with a fake driver."""
