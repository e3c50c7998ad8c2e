"""Read manifests, submit and move pods, and wait for decisions, for verbs on pods."""
