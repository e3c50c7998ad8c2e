"""Files from outside, read within limits."""
