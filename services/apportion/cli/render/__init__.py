"""What a person sees: tables, colours, progress and plain text."""
