"""Unit tests of NVIDIA cards, on a driver that is made up."""
