"""Reads and writes files, with limits on their size and number."""
