"""Write the bill of materials (CycloneDX 1.6) from the locks: `make sbom`.

    python -m tools.bill dist/apportion.cdx.json [--image apportion:release]

The packages are those of requirements/runtime.txt, with the hashes that an installation requires.
Dependencies and licences come from the installed metadata. Images are those pinned by digest. With
`--image`, the Debian packages of that image are listed too, as its dpkg reports them.
Invariant: the same locks and image give the same bytes. The document has no time and no random
number; its serial number is derived from its content."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
import uuid
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import click
from click import ClickException, echo

from tools.pins import pinned

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "runtime.txt"
_LINE = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?: ; (?P<marker>[^\\\n]*))?")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_WANTED = re.compile(r"^[\w.-]+")
_NAMESPACE = uuid.UUID("6a1c5f0e-2f0b-5d55-9c0e-0d2f2a4b7c11")


class Locked(NamedTuple):
    """A package in a lock file; with an empty `marker`, it is installed on every platform."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        """Return the package's URL in the purl format."""
        return f"pkg:pypi/{self.name}@{self.version}"


def locked(text: str) -> list[Locked]:
    """Return the packages of a lock file, in its order. Raises ValueError for a line without a
    hash."""
    found = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        line, hashes = _LINE.match(block), tuple(_HASH.findall(block))
        if line is None or not hashes:
            raise ValueError(
                f"no pinned version or no hash; write the lock file again: {block[:80]!r}"
            )
        marker = (line["marker"] or "").strip()
        found.append(Locked(canonical(line["name"]), line["version"], marker, hashes))
    return found


def canonical(name: str) -> str:
    """Return the normalized project name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def debian(image: str) -> list[dict[str, Any]]:
    """Return the Debian packages of an image, as its dpkg lists them. Raises ClickException."""
    podman = shutil.which("podman")
    if podman is None:
        raise ClickException(f"podman not found; install it to list the packages of {image}")
    command = [podman, "run", "--rm", "--network=none", "--entrypoint=dpkg-query", image,
               "--show", r"--showformat=${Package}\t${Version}\t${Architecture}\n"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClickException(f"{' '.join(command)}: {done.stderr.strip()}")
    found = []
    for line in done.stdout.splitlines():
        name, version, architecture = line.split("\t")
        purl = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={architecture}"
        found.append({"type": "library", "bom-ref": purl, "name": name, "version": version,
                      "purl": purl})  # fmt: skip
    return found


def bill(image: str | None = None) -> dict[str, Any]:
    """Return the bill of materials. Raises ClickException if `image` cannot be read."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    packages = locked(LOCK.read_text("utf-8"))
    ours = f"pkg:pypi/{project['name']}@{project['version']}"
    images = [_image(name, digest) for name, digest in sorted(pinned().items())]
    direct = {canonical(_wanted(each)) for each in project["dependencies"]}
    needs = [{"ref": ours, "dependsOn": _refs(packages, direct)}]
    needs += [{"ref": each.purl, "dependsOn": _refs(packages, _needs(each))} for each in packages]
    made = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": ours,
                "name": project["name"],
                "version": project["version"],
                "purl": ours,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [*map(_package, packages), *images, *(debian(image) if image else ())],
        "dependencies": needs,
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(made, sort_keys=True))
    return {**made, "serialNumber": f"urn:uuid:{serial}"}


def _package(each: Locked) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": each.purl,
        "name": each.name,
        "version": each.version,
        "purl": each.purl,
        # One file for each platform. The hash identifies the one that is installed.
        "externalReferences": [
            {
                "type": "distribution",
                "url": each.purl,
                "hashes": [{"alg": "SHA-256", "content": content} for content in each.hashes],
            }
        ],
    }
    if each.marker:
        made["properties"] = [{"name": "apportion:installed-where", "value": each.marker}]
    licence = _licence(each)
    return {**made, "licenses": [licence]} if licence else made


def _image(name: str, digest: str) -> dict[str, Any]:
    image, _, tag = name.partition(":")
    purl = f"pkg:oci/{image.rpartition('/')[2]}@{digest.replace(':', '%3A')}?tag={tag}"
    return {
        "type": "container", "bom-ref": purl, "name": image, "version": tag, "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
    }  # fmt: skip


def _said(each: Locked) -> metadata.PackageMetadata | None:
    """Return the package's installed metadata, or None if this version is not installed."""
    try:
        found = metadata.distribution(each.name)
    except metadata.PackageNotFoundError:
        return None
    return found.metadata if found.version == each.version else None


def _licence(each: Locked) -> dict[str, Any] | None:
    said = _said(each)
    if said is None:
        return None
    if "License-Expression" in said:
        return {"expression": said["License-Expression"]}
    classes = [one.rpartition(" :: ")[2] for one in said.get_all("Classifier") or ()
               if one.startswith("License ::")]  # fmt: skip
    return {"license": {"name": classes[0]}} if classes else None


def _needs(each: Locked) -> set[str]:
    said = _said(each)
    wanted = said.get_all("Requires-Dist") or () if said is not None else ()
    return {canonical(_wanted(one)) for one in wanted if "extra ==" not in one}


def _wanted(requirement: str) -> str:
    found = _WANTED.match(requirement)
    return found[0] if found else ""


def _refs(packages: Iterable[Locked], names: set[str]) -> list[str]:
    return sorted(each.purl for each in packages if each.name in names)


@click.command()
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--image", help="List the packages of Debian in this image as well.")
def main(target: Path, image: str | None) -> None:
    """Write the bill of materials to TARGET."""
    made = bill(image)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", "utf-8")
    echo(f"{target}: {len(made['components'])} components")


if __name__ == "__main__":
    main()
