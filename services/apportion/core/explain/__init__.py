"""What people are told: refusals and placements in words, and the state as documented answers."""
