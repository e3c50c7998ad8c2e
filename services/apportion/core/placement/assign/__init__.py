"""Choose the devices of each container on the chosen node."""
