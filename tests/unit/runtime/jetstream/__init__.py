"""Unit tests of `runtime/jetstream`."""
