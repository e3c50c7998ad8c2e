"""Read Kubernetes and Volcano manifests into pods that can be submitted.

`reading` is the entry point. `kinds/` has one function per kind of document. `pods/` reads the
parts of a pod, and `dialects/` the names of devices. `lint/` finds mistakes, and `adoption/` reads
bound pods. Invariant: an invalid document never keeps another one from being read."""
