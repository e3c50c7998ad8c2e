"""Tests of the services against a real API server."""
