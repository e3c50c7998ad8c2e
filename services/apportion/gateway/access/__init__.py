"""Who may ask the gateway, and act through it: people by their tokens, and what each may see."""
