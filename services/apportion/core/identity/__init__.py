"""Permissions on the NATS bus, all derived from one table of roles.

    roles.ROLES ──► permissions_of(identity) ──► nats.conf, the callout's tokens, the threat model

A role has the rights that its work needs, and no others. To change a right, change its row in
`roles.py`; never edit what is generated from the table."""
