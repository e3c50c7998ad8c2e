"""Tests of the intake process."""
