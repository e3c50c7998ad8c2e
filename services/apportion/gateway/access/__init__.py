"""Access to the gateway: logins, permissions, and each user's view."""
