"""One file for each verb. No verb imports another; shared code is in `client`, `pods`, `render`."""
