"""Unit tests of the watcher."""
