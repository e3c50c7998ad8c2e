"""Read the parts of a pod: its template, its volumes and its relations to other pods."""
