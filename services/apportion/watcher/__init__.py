"""Turns what is wanted into events of the ledger: pods that want a place, gangs, pods that left.

A watcher compares a source with the ledger and writes the difference: PodSubmitted for a pod that
is in the source and not in the ledger, PodGone for one that left the source, PodGroupObserved for a
gang that the ledger does not know or knows otherwise. It compares whole states and never counts
changes, so a deletion that nobody watched is found on return, and a pod that a person deleted is
submitted again as long as its manifest is there. The source is a folder of manifests, like the
kubelet's static pods; what is in the ledger from elsewhere is left alone.

In Kubernetes the cluster is the source of pods, nodes, gangs and queues (`kubernetes_*`): what
changes is marked and compared, and the whole from time to time. Beside a cluster the ledger has the
cluster's pods and no others, and each fact is fenced by the newest revision on its subject.

The only writer of workload and cluster events; replicas are harmless: they come to the same uids
and event ids, and the server drops doubles.
"""
