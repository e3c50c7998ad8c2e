"""Match NATS subjects to patterns, for the in-memory ledger's stream, queues and plain messages."""


def matches(pattern: str, subject: str) -> bool:
    """Return True if a subject matches a pattern.

    In a pattern, `*` matches one token. `>` matches one or more tokens, and comes last.

        >>> matches("apportion.v1.placement.>", "apportion.v1.placement.n1")
        True"""
    wanted, found = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(found) > at
        if at >= len(found) or token not in ("*", found[at]):
            return False
    return len(wanted) == len(found)
