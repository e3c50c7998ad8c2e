"""The read API: documented JSON answers, and live events."""
