"""Unit tests of `runtime/files`."""
