"""Report how much GPU time was allocated, used and charged, from a second fold of the ledger.

    events ──► fold ──► Change ──► Account (rates, summed over time) ──► answers, CSV, FOCUS

A report takes time in proportion to the number of changes, not to the size of the fleet. Sums are
integers: millionths of a device, MiB and microseconds. Invariant: allocated, free, cordoned and
unhealthy parts add up to the capacity exactly."""
