"""Write token files for a gateway without a cluster. Each user's token is the user's name."""

from hashlib import sha256
from pathlib import Path

OPERATOR = 'namespaces = ["*"]\nmay = ["cordon"]'
TENANT = 'namespaces = ["ml"]'
SCRAPER = 'may = ["metrics"]'


def digest_of(token: str) -> str:
    """Return a token's hash as token files store it."""
    return sha256(token.encode()).hexdigest()


def rows(**people: str) -> str:
    """Return the text of a token file.

    Each keyword argument is a user's name. Its value is TOML text with the other fields of that
    user."""
    return "\n".join(
        f'[[token]]\nname = "{name}"\nsha256 = "{digest_of(name)}"\n{rest}\n'
        for name, rest in people.items()
    )


def people(folder: Path) -> Path:
    """Write a token file with three users: operator olga, mei of namespace `ml`, and prometheus."""
    path = folder / "tokens.toml"
    path.write_text(rows(olga=OPERATOR, mei=TENANT, prometheus=SCRAPER))
    return path
