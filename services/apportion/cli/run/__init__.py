"""`apportion run`: a command of this machine inside a share."""
