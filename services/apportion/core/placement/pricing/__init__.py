"""What the pods that usually come are worth, and what a node could still earn from them.

`shape_histogram` counts shapes, `fleet` sorts the nodes into types; from both a solver outside of
core works out prices, which come back as a `PricesLearnt` event. `price_table` makes tables of
them, which the scores `price` and `fgd` look up."""
