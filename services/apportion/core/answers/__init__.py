"""The structs of the gateway's JSON answers, which the command line decodes."""
