"""Compute the value of frequent pods, and how much a node could still earn from them.

A solver outside of core computes prices from `shape_histogram` and `program`; prices arrive as a
`PricesLearnt` event. `price_table` turns prices into tables for the scores `price` and `fgd`."""
