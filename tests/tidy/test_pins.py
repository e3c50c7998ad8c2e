"""Images are pinned by digest and actions by commit, and `tools.pins` can refresh a digest."""

from pathlib import Path

import click
import pytest

from tools import pins

DIGEST = f"sha256:{'ab' * 32}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "line",
    [
        "FROM debian:bookworm", "FROM debian AS system", "ARG BASE=debian:bookworm",
        "    image: nats:2.14-alpine", "  - image: 'nats'", '  image: "nats:2"  # why',
        "  image: ${APPORTION_NATS_IMAGE:-nats:2.14-alpine}", "FROM debian@sha256:abc",
        "      - uses: actions/checkout@v5", "  uses: someone/thing@main",
    ],
)  # fmt: skip
def test_unpinned_references_are_found(line: str) -> None:
    """The check reports images referenced by tag, without a tag or by a short digest.

    It also reports actions referenced by branch."""
    assert len(list(pins.unpinned(f"x\n{line}\ny\n"))) == 1


@pytest.mark.parametrize(
    "line",
    [
        f"FROM debian:bookworm@{DIGEST} AS system", "FROM ${BASE} AS system",
        f"ARG BASE=debian:bookworm@{DIGEST}", f"  image: ${{X:-nats:2.14-alpine@{DIGEST}}}",
        "  image: apportion:local", "  image:\n    repository: apportion",
        "  image: {{ .Values.nats.image }}", f"  - uses: actions/checkout@{COMMIT} # v5",
        "  - uses: ./.github/actions/ours", "FROM debian:1@" + DIGEST + " AS one\nFROM one",
    ],
)  # fmt: skip
def test_pinned_references_are_accepted(line: str) -> None:
    """The check accepts references by digest or commit.

    It also accepts references to build stages, our own images and template values."""
    assert list(pins.unpinned(f"x\n{line}\ny\n")) == []


def test_every_file_that_is_refreshed_pins_something() -> None:
    """Every file in which `tools.pins` refreshes digests contains a digest."""
    for name in pins.FILES:
        assert pins.PINNED.search((pins.ROOT / name).read_text("utf-8")), name
    assert len(pins.pinned()) == 2


def test_a_digest_is_looked_up_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refreshing a pin keeps the image's tag and updates the digest, with skopeo or docker.

    It fails if neither tool is installed, or if the tool fails."""
    text = f"FROM debian:bookworm@{DIGEST} AS system\n"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(click.ClickException, match="no skopeo or docker"):
        pins.refreshed(text, pins.digest_of)
    tool = tmp_path / "skopeo"
    new = f"sha256:{'cd' * 32}"
    tool.write_text(f'#!/bin/sh\n[ "$4" = docker://debian:bookworm ] && echo {new}\n')
    tool.chmod(0o755)
    assert pins.refreshed(text, pins.digest_of) == text.replace(DIGEST, new)
    tool.write_text("#!/bin/sh\necho 'who are you?' >&2; exit 1\n")
    with pytest.raises(click.ClickException, match="who are you"):
        pins.refreshed(text, pins.digest_of)
