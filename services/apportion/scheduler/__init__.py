"""Fold, decide, append.

The only writer of placements and refusals; every append is fenced by the server.
"""
