"""Unit tests of the fake NVIDIA driver. It has to refuse everything that the real driver
refuses."""
