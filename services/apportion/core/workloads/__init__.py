"""Workloads: read the documents that users have today into pods that can be submitted.

`reading` is the entry point. `kinds/` has one function per kind of document, `pods/` reads the
parts of a pod, and `dialects/` the names of devices. `lint/` finds probable mistakes, and
`adoption/` reads pods that are already bound. Pure: parsed documents in, drafts out; the caller
gives each pod its uid. Invariant: every document has its own outcome, so a bad one never hides a
good one."""
