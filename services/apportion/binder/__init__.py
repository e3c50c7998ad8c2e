"""Turns a placement into a binding, and records what came of it.

The only writer of binding events; binding again is recognised and harmless.
"""
