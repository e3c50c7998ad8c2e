"""How pods wait that have no place: what may help them, and what they are told meanwhile."""
