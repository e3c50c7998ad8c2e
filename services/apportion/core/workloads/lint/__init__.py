"""Find what is probably a mistake in a manifest, or has no effect; nothing is refused."""
