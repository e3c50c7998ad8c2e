"""Turns what is wanted into events of the ledger: pods that want a place, gangs, pods that left.

A watcher compares whole states of a source and of the ledger, writes the difference, and never
counts changes: so a deletion that nobody watched is found on return, and a pod that a person
deleted is submitted again as long as its manifest is there. The source is a folder of manifests
(`local`), like the kubelet's static pods, and what is in the ledger from elsewhere is left alone;
or it is a cluster (`kubernetes`), whose pods the ledger then has and no others. What changes there
is marked and compared, the whole from time to time, and each fact is fenced by the newest revision
on its subject.

The only writer of workload and cluster events; replicas are harmless: they come to the same uids
and event ids, and the server drops doubles."""
