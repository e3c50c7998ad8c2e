"""Estimate what frequent pod shapes are worth, and how many such pods a node could still run.

A solver outside of core computes prices from `shape_histogram` and `program`; they arrive as a
`PricesLearnt` event. `price_table` turns them into tables for the scores `price` and `fgd`."""
