"""Drive a real browser in tests of the console's pages."""
