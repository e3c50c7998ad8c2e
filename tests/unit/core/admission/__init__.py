"""Unit tests of `core/admission`."""
