"""The answers of the read API: the gateway sends them, the command line reads them."""
