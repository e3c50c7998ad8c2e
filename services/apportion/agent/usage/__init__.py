"""Measures how containers use their shares: samples, metrics and hourly sums."""
