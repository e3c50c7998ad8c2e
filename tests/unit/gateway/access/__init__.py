"""Who may ask the gateway, and what he sees."""
