"""The console: static pages for a browser, which use only the read API."""
