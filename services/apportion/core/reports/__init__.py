"""What the fleet was granted, used and worth over a time: a fold of the ledger beside the fold.

    events ──► fold ──► Change ──► Account (rates, summed up over time) ──► answers, CSV, FOCUS

An account follows the changes of one state and turns them into rates (cards and MiB, by row and
model) that it adds up between events, so its cost follows the number of changes and not the size of
the fleet. Everything is in whole numbers until the end: millionths of a card, MiB and microseconds.
Invariant: granted + free + cordoned + broken is the capacity, exactly, at every moment."""
