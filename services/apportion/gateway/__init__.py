"""The read side over HTTP: the state as of a revision, live events, metrics.

A fold like every other reader; it keeps no truth of its own.
"""
