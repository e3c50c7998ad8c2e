"""Unit tests of how an agent makes shares, in folders and in the driver."""
