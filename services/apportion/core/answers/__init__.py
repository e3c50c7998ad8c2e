"""The answers of the read side, as structs: what the gateway sends and the command line reads."""
