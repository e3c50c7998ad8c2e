"""Devices as data, and the small pure functions that charge shares to them."""
