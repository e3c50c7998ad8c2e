"""Unit tests of the fake NVIDIA driver, which must be as strict as the real one."""
