"""Unit tests of choosing places: gangs, geometries."""
