"""What frequent pods are worth, and how much a node could still earn from them.

`shape_histogram` counts shapes, and `program` groups nodes into types. From both, a solver outside
of core computes prices, which arrive as a `PricesLearnt` event. `price_table` turns them into
tables for the scores `price` and `fgd`."""
