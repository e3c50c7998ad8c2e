"""Devices as data, and the functions that take shares from their free amounts."""
