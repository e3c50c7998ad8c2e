"""Who may do what on the bus."""
