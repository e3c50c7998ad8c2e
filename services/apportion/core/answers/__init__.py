"""What the gateway's API answers; the command line reads these answers."""
