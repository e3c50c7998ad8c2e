"""Tests of how a service reads the secrets with which it connects to NATS."""

from pathlib import Path

import pytest

from apportion.runtime.process.reach import CannotShow, Reach

URL = "nats://127.0.0.1:4222"


def test_a_renewed_token_is_read_again(tmp_path: Path) -> None:
    """Each connection uses the current content of the token file, because Kubernetes renews it."""
    reach = Reach(URL, token=tmp_path / "token")
    for token in ("first", "second"):
        (tmp_path / "token").write_text(f"{token}\n")
        assert reach.read_token() == token


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff"])
def test_a_secret_that_cannot_be_used_is_named_by_its_file(
    content: bytes | None, tmp_path: Path
) -> None:
    """If the file of a token or key is missing, empty or not text, the error names the file."""
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    reach = Reach(URL, key=path, token=path)
    for read in (reach.read_token, reach.read_key):
        with pytest.raises(CannotShow) as refused:
            read()
        assert str(path) in str(refused.value)
