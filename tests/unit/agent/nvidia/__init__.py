"""Unit tests of NVIDIA GPUs, on a fake driver."""
