"""The services against a real API server."""
