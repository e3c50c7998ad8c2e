"""Attacks that use one stolen identity. Each attack is made twice: it must fail against the system,
and succeed once the system's guard is removed."""
