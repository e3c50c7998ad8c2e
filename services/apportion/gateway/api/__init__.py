"""The read API: questions answered as documented JSON, and events as they come."""
