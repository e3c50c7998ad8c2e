"""Output for users: tables, colours, progress and plain text."""
