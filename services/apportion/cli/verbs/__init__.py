"""The verbs, one file for each. No verb imports another: shared code is in `client`, `pods`,
`render`."""
