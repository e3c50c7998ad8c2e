"""Tests with real faults on a cluster of three NATS servers: killed processes, signals, full
disks."""
