"""Verbs of the command line as processes, with real services on a real nats-server."""
