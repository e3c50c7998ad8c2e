"""Programs for people who work on Apportion; nothing that we ship imports them."""
