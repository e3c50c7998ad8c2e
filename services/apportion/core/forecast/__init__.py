"""Forecast when a pending pod starts, from past runs and past waits in the ledger.

`durations` knows how long pods run, and `waits` knows how long pods waited in similar situations.
`line` follows the events and combines both. Invariant: a forecast follows from the events alone; it
uses no random number."""
