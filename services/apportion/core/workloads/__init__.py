"""Workloads: the documents that people have today, read into pods that can be submitted.

`reading` is where a document comes in. `kinds/` has one function for each kind of document, `pods/`
reads the parts of a pod, and `dialects/` the names of devices. `lint/` looks for what is probably
not meant as it is written, and `adoption/` reads pods that are bound already.

Pure: parsed documents come in, drafts come out, and the caller gives each pod its uid. Invariant:
every document has its own outcome, so a bad one never hides a good one."""
