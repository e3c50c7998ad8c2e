"""NATS subjects and patterns: the one rule that stream, queues and plain messages share."""


def matches(pattern: str, subject: str) -> bool:
    """Return True if a subject matches a pattern with `*` (one token) and `>` (one or more, at
    its end).

        >>> matches("apportion.v1.placement.>", "apportion.v1.placement.n1")
        True"""
    wanted, found = pattern.split("."), subject.split(".")
    for at, token in enumerate(wanted):
        if token == ">":
            return len(found) > at
        if at >= len(found) or token not in ("*", found[at]):
            return False
    return len(wanted) == len(found)
