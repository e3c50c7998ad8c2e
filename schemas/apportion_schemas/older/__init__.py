"""Versions of events that stand in ledgers and are written no more.

One module for each, named after event and version, as `pod_placed_1`: the payload as it was, in a
class of the event's own name, with every struct inside it that has changed since; and `lift`, which
takes its JSON object to that of the next version. The catalogue names both in the row of the event.

Invariant: nothing here changes any more; `schemas/generate.py` compares it with what is recorded.
"""
