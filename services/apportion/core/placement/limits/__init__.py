"""What pods may hold together: the capability of a queue, the quota of a namespace."""
