"""The answers of the read API, which the gateway sends and the command line reads."""
