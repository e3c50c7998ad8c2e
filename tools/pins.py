"""List the images that we pin by digest, and refresh their digests.

    python -m tools.pins            list the pinned images and their digests
    python -m tools.pins --refresh  write the current digest of each tag: `make digests`

A tag can be moved by anyone who may push it; a digest identifies the content. The tag is kept next
to the digest, for readers and for the next refresh.
Invariant: `unpinned` finds every third-party image that is named without a digest, and every
workflow action without a commit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from click import ClickException, echo

ROOT = Path(__file__).resolve().parents[1]
FILES = ("deploy/docker/Dockerfile", "docker-compose.yml", "deploy/helm/apportion/values.yaml")
"""Files that name third-party images. deploy/kubernetes is rendered from the last one."""
PINNED = re.compile(r"(?P<image>\w[\w./-]*:\w[\w.-]*)@(?P<digest>sha256:[0-9a-f]{64})\b")
_NAMED = re.compile(r"^[ \t-]*(?:image:|FROM|ARG BASE=)[ \t]*(?P<image>\S+)", re.MULTILINE)
_DEFAULT = re.compile(r"^\$\{\w+:-(.*)\}$")
_STAGE = re.compile(r"^FROM \S+ AS (\S+)", re.MULTILINE)
_ACTION = re.compile(r"^[ \t-]*uses:[ \t]*(?P<action>\S+)", re.MULTILINE)
_COMMIT = re.compile(r"@[0-9a-f]{40}$")
OURS = re.compile(r"^(apportion(:|$)|localhost/|\$\{BASE\}$|\{\{)")
TOOLS: dict[str, tuple[str, ...]] = {
    "skopeo": ("inspect", "--format", "{{.Digest}}", "docker://{image}"),
    "docker": ("buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", "{image}"),
}
"""Commands that print the digest of an image index without pulling it."""


def pinned() -> dict[str, str]:
    """Return every image that our files pin, with its digest."""
    found = (PINNED.finditer((ROOT / name).read_text("utf-8")) for name in FILES)
    return {each["image"]: each["digest"] for every in found for each in every}


def unpinned(text: str) -> Iterator[str]:
    """Yield each image without a digest, and each workflow action without a commit, in the text."""
    stages = set(_STAGE.findall(text))
    for found in _NAMED.finditer(text):
        image = _DEFAULT.sub(r"\1", found["image"].strip("\"'"))
        if image not in stages and not OURS.match(image) and not PINNED.search(image):
            yield image
    for found in _ACTION.finditer(text):
        if not found["action"].startswith("./") and not _COMMIT.search(found["action"]):
            yield found["action"]


def refreshed(text: str, digest_of: Callable[[str], str]) -> str:
    """Return the text with the current digest of each tag."""
    return PINNED.sub(lambda found: f"{found['image']}@{digest_of(found['image'])}", text)


def digest_of(image: str) -> str:
    """Return the current digest of a tag, using the first tool that is installed.

    Raises ClickException if there is no tool, or the registry does not answer with a digest."""
    tool = next((name for name in TOOLS if shutil.which(name)), None)
    if tool is None:
        raise ClickException(f"no {' or '.join(TOOLS)} to look up {image} with: install one")
    command = [tool, *(word.replace("{image}", image) for word in TOOLS[tool])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    digest = done.stdout.strip()
    if done.returncode or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ClickException(f"{' '.join(command)}: {done.stderr.strip() or digest}")
    return digest


def main() -> None:
    """List the pinned images and their digests, or refresh the digests."""
    if "--refresh" not in sys.argv[1:]:
        for image, digest in pinned().items():
            echo(f"{image}@{digest}")
        return
    for name in FILES:
        path = ROOT / name
        before = path.read_text("utf-8")
        after = refreshed(before, digest_of)
        path.write_text(after, "utf-8")
        echo(f"{name}: {'new digests' if after != before else 'as it was'}")


if __name__ == "__main__":
    main()
