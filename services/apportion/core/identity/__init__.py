"""Permissions on the NATS bus, all derived from one table of roles.

    roles.ROLES ──► permissions_of(identity) ──► nats.conf, the callout's tokens, the threat model

A role has only the rights that its work needs. To change a right, change the role's row in
`roles.py`; never edit what is generated from the table."""
