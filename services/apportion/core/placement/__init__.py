"""Decide where a pod goes: filter, score, choose, assume, and explain.

`engine` is the entry point. `feasibility` has the filters and `scores` the scores, one function
each. `index` and `classes` keep the cost of a decision proportional to what changed since the last
one."""
