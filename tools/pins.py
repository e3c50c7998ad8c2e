"""Images by digest: which ones we name, and what their tags mean by now.

    python -m tools.pins            say which images are pinned, and where
    python -m tools.pins --refresh  look each tag up, and write its digest of today: `make digests`

A tag is moved by whoever may push it; a digest is the content. The tag stays beside it, for people
and for the next look. Invariant: `unpinned` finds every image of somebody else's that is named
without a digest, and every action of a workflow without a commit."""

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
"""Where images of others are named; deploy/kubernetes is rendered from the last one."""
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
"""What asks a registry for the digest of an index, without pulling anything."""


def pinned() -> dict[str, str]:
    """Every image that we name, with its digest."""
    found = (PINNED.finditer((ROOT / name).read_text("utf-8")) for name in FILES)
    return {each["image"]: each["digest"] for every in found for each in every}


def unpinned(text: str) -> Iterator[str]:
    """The images without a digest, and actions without a commit, of a file."""
    stages = set(_STAGE.findall(text))
    for found in _NAMED.finditer(text):
        image = _DEFAULT.sub(r"\1", found["image"].strip("\"'"))
        if image not in stages and not OURS.match(image) and not PINNED.search(image):
            yield image
    for found in _ACTION.finditer(text):
        if not found["action"].startswith("./") and not _COMMIT.search(found["action"]):
            yield found["action"]


def refreshed(text: str, digest_of: Callable[[str], str]) -> str:
    """The text with the digest that each tag has now."""
    return PINNED.sub(lambda found: f"{found['image']}@{digest_of(found['image'])}", text)


def digest_of(image: str) -> str:
    """The digest of a tag, by the first tool that is there.

    Raises ClickException: there is no tool, or its registry does not answer with a digest."""
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
    """Say what is pinned, or pin it anew."""
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
