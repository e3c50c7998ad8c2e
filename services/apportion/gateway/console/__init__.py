"""The console: pages for a browser, of static files that ask the read API and nothing else."""
