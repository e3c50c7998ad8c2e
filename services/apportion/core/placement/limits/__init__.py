"""Limits on what pods use together: the capability of a queue, the quota of a namespace."""
