"""The laboratory: fleets, manifests, traces and ledgers, tried with the engine itself.

`apportion plan` and `apportion replay` are made of the same functions. Invariant: nothing here
appends to a ledger.
"""
