"""Tests of the console in a real browser, with a real gateway."""
