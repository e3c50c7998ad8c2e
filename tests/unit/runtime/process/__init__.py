"""Unit tests of `runtime/process`."""
