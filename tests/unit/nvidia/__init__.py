"""Unit tests of the fake NVIDIA driver: a double must be as strict as what it stands for."""
