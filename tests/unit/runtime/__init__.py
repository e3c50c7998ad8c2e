"""Unit tests of the runtime that need no server."""
