"""Attacks with one stolen identity. Each attack is made twice.

Against the guarded system it must fail. With the guard removed it must succeed."""
