"""The runtime's own rules, without a server."""
