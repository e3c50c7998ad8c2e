"""The parts of a pod: what its template, its volumes and its relations to other pods mean."""
