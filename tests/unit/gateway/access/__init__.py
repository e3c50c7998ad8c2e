"""Unit tests of access to the gateway: logins, rights, and what a tenant may see."""
