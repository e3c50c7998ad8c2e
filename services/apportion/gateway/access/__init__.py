"""Access to the gateway: logins, permissions, and what each user may see."""
