"""One file for each verb. No verb imports another: `client`, `pods` and `render` are shared."""
