"""Files of tokens for a gateway without a cluster: the token of each person is his name."""

from hashlib import sha256
from pathlib import Path

OPERATOR = 'namespaces = ["*"]\nmay = ["cordon"]'
TENANT = 'namespaces = ["ml"]'
SCRAPER = 'may = ["metrics"]'


def digest_of(token: str) -> str:
    """What stands for a token in the file."""
    return sha256(token.encode()).hexdigest()


def rows(**people: str) -> str:
    """The text of a file, of each person with the rest of his row."""
    return "\n".join(
        f'[[token]]\nname = "{name}"\nsha256 = "{digest_of(name)}"\n{rest}\n'
        for name, rest in people.items()
    )


def people(folder: Path) -> Path:
    """A file with olga, who may all that people may, mei of namespace `ml`, and prometheus."""
    path = folder / "tokens.toml"
    path.write_text(rows(olga=OPERATOR, mei=TENANT, prometheus=SCRAPER))
    return path
