"""Unit tests of the event schemas, and of which events services accept."""
