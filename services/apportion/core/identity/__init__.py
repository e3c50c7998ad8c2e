"""Who may do what on the bus: one table, of which all else is made.

    roles.ROLES ──► permissions_of(identity) ──► nats.conf, what the callout signs, docs/security.md

A role says what its work needs, and nothing more. Whoever needs another subject, or another role,
changes its row in `roles.py`; nothing that is made of the table is changed by hand."""
