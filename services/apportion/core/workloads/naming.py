"""Names as Kubernetes allows them (RFC 1123), so that none surprises an API server later."""

import re

from apportion.core.workloads.dialects.errors import ManifestError
from apportion_schemas.quantities import NAME_MAX

LABEL_MAX = 63
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def label(value: str, field: str) -> str:
    """A container, namespace, task or queue: a DNS label.

    Raises:
        ManifestError: empty, too long, or with other characters.
    """
    if len(value) > LABEL_MAX or not _LABEL.fullmatch(value):
        raise ManifestError(
            field,
            value,
            "is no DNS label",
            f"write at most {LABEL_MAX} of a-z, 0-9 and '-', no '-' at the ends",
        )
    return value


def subdomain(value: str, field: str) -> str:
    """A pod or job: DNS labels joined by dots.

    Raises:
        ManifestError: missing, too long, or with other characters.
    """
    if not value:
        raise ManifestError(field, None, "is missing", "add it")
    if len(value) > NAME_MAX or not all(map(_LABEL.fullmatch, value.split("."))):
        raise ManifestError(
            field,
            value,
            "is no DNS name",
            f"write at most {NAME_MAX} of a-z, 0-9, '-' and '.', no '-' or '.' at the ends",
        )
    return value


def qualified(value: str, field: str) -> str:
    """A scheduling gate: a name of letters, perhaps after a DNS name and a slash.

    Raises:
        ManifestError: empty, too long, or with other characters.
    """
    prefix, slash, name = value.rpartition("/")
    if slash:
        subdomain(prefix, field)
    if len(name) > LABEL_MAX or not _QUALIFIED.fullmatch(name):
        raise ManifestError(
            field, value, "is no qualified name", "write a name as in example.com/quota"
        )
    return value


def joined(*parts: object, field: str, by: str = "-") -> str:
    """A name made of others, which may have become too long.

    Raises:
        ManifestError: it has.
    """
    name = by.join(map(str, parts))
    if len(name) > NAME_MAX:
        raise ManifestError(
            field, name, f"makes names of {len(name)} characters", f"stay within {NAME_MAX}"
        )
    return name
