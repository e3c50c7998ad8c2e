"""The console: static pages for a browser that use only the read API."""
