"""Read the parts of a pod: its template, volumes, node requirements and relations to other pods."""
