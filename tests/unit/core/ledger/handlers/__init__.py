"""Unit tests of the handlers that fold each type of event into the state."""
