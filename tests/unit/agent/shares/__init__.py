"""Unit tests of how an agent makes shares, both as folders on disk and in the driver."""
