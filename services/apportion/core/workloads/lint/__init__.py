"""Find probable mistakes and settings without effect in a manifest; nothing is refused."""
