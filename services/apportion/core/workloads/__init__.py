"""Read the documents that users have today into pods that can be submitted.

`reading` is the entry point. `kinds/` has one function per kind of document, `pods/` reads the
parts of a pod, `dialects/` the names of devices, `lint/` finds mistakes, and `adoption/` reads
bound pods. Invariant: every document has its own outcome, so an invalid one hides no valid one."""
