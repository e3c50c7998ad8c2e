"""The command line: one verb for each task, and one for each service."""
