"""Unit tests of the events: what is let in and what is not."""
