"""Unit tests of `core/doctor`, which checks an installation from collected facts."""
