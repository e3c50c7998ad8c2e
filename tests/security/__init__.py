"""Attacks that use one stolen identity. Each attack is also made with the system's guard removed,
where it must succeed."""
