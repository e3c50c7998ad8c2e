"""What verbs on pods share: reading manifests, submitting, waiting for decisions, moving."""
