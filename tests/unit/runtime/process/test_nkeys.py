"""Tests that our code derives the same NATS keys as other tools, and never shows a seed."""

from pathlib import Path

import pytest

from apportion.runtime.process.reach import (
    ACCOUNT,
    SERVER,
    USER,
    InvalidKey,
    check_public,
    new_key,
    parse_seed,
    read_seed,
    write_seed,
)

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
"""A key pair from the documentation of NATS."""


def test_a_known_pair() -> None:
    """The example seed in the NATS documentation has the public key that is documented for it."""
    key = parse_seed(SEED)
    assert key.public == PUBLIC
    assert key.seed == SEED
    assert check_public(PUBLIC) == PUBLIC


@pytest.mark.parametrize(("kind", "letter"), [(USER, "U"), (ACCOUNT, "A"), (SERVER, "N")])
def test_a_new_key_says_whose_it_is(kind: int, letter: str) -> None:
    """The first letter of a key shows its kind. Reading the key's seed gives the same key."""
    key = new_key(kind)
    assert key.public.startswith(letter)
    assert key.seed.startswith(f"S{letter}")
    assert parse_seed(key.seed).public == key.public
    assert new_key(kind).public != key.public


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (SEED[:-1] + "A", "checksum"),
        (SEED.lower(), "only A to Z"),
        (PUBLIC, "not a NATS seed"),
        ("SUAC", "checksum"),
    ],
)
def test_what_is_no_seed_is_refused_unseen(text: str, cause: str) -> None:
    """The error about an invalid seed gives the cause but does not contain the seed."""
    with pytest.raises(InvalidKey, match=cause) as refused:
        parse_seed(text)
    assert text not in str(refused.value)


def test_a_file_is_its_owners_and_is_not_written_over(tmp_path: Path) -> None:
    """A seed file has mode 0600, and an existing file is never overwritten."""
    path = tmp_path / "me.nk"
    key = new_key()
    write_seed(path, key)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_seed(path).public == key.public
    with pytest.raises(FileExistsError):
        write_seed(path, new_key())


def test_a_file_without_a_seed_is_named(tmp_path: Path) -> None:
    """If a file contains no seed, the error names the file."""
    path = tmp_path / "me.nk"
    path.write_text("hello\n")
    with pytest.raises(InvalidKey, match=r"me\.nk has no NATS seed"):
        read_seed(path)
