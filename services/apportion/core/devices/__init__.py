"""Devices as data, and the pure functions that charge shares to them."""
