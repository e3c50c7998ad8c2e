"""Decide which node and devices a pod gets: filter, score, choose devices, and explain refusals.

`engine` is the entry point; `feasibility` has the filters, `scores` the scores. `index` and
`classes` keep the cost of a decision proportional to what changed since the last one."""
