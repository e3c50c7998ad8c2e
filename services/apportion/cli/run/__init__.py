"""`apportion run`: run a command on this machine inside a share."""
