"""Unit tests of the intake, which checks and appends the agents' reports."""
