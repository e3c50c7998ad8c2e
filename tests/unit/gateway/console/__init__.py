"""Unit tests of the console, the gateway's web interface."""
