"""Programs for the developers of Apportion. Nothing that we ship imports them."""
