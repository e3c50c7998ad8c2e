"""Attacks with one stolen identity. Each attack must fail, and must succeed once the guard against
it is removed."""
