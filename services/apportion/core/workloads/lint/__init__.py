"""What a manifest probably does not mean, or what has no effect here; nothing is refused."""
