"""Writes workload events to the ledger: pods that need a placement, gangs, pods that left.

A watcher compares the whole state of a source with the ledger and writes the difference. So it
finds a deletion that it missed, and a pod that a user deleted is submitted again as long as its
manifest exists. The source is a folder of manifests (`local`), like the kubelet's static pods; pods
from elsewhere are left alone. Or it is a cluster (`kubernetes`), and the ledger has just its pods.
There, changed objects are marked and compared, everything is compared from time to time, and each
event is fenced by the newest revision on its subject.

Only the watcher writes workload and cluster events. Replicas are harmless: they derive the same
uids and event ids, and the server drops duplicates."""
