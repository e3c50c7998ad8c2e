"""Diagnose an installation, for `apportion doctor` and the gateway's doctor page.

    gathered facts ──► one function per check ──► state, words, fix

A new check is a function and its row in `checks.CHECKS`; callers gather the facts. Invariant: a
check without its facts has no result, so nothing is reported as ok without being checked."""
