"""What containers use of their shares: looked at, told to whoever asks, and summed up by the hour.

`owners` says whose a process is, `uses` lays loads at the doors of shares, `names` has the series
of scrapes, `account` the sums, and `sampling` is the loop over all of it."""
