"""Where a pod goes: filter → score → choose → assume, and why.

`engine` is the way in; `filters` and `scores` hold the rules, one function each; `index` and
`classes` are what makes a decision cost as much as what changed since the last one."""
