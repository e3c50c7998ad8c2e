"""The answers of the read API, as structs: the gateway sends them, the command line reads them."""
