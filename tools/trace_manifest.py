"""Count what a reader has to visit to follow how one manifest is parsed.

    python -m tools.trace_manifest                     all of examples/pods, the worst last
    python -m tools.trace_manifest hami.yaml        one, with the files in order of entry

A file counts once it is entered, and a function once it is called. A jump is a call from one file
into another. The traced code is that of `apportion submit -f`: from the file to pods, with every
warning. Tables that a process builds once (the names of all dialects) are built before the count,
because a reader does not step into them; `--cold` counts them too. `--pure` counts only
`read_documents`, from parsed documents to pods."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import FrameType

from apportion.core.workloads.reading import read_documents
from apportion.runtime.files.manifests import Document, read_manifest_files, read_wish

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "examples" / "pods"
OURS = (str(ROOT / "services"), str(ROOT / "schemas"))


@dataclass(slots=True)
class Visits:
    """The files and functions entered in a run, in order of entry, and the number of jumps.

    A jump is a call from one file into another."""

    files: dict[str, None] = field(default_factory=dict)
    functions: dict[tuple[str, str], None] = field(default_factory=dict)
    jumps: int = 0

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call. Comprehensions and lambdas count as the function around them."""
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event != "call" or not file.startswith(OURS) or name.endswith(">"):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(OURS):
            caller = caller.f_back
        self.jumps += caller is None or caller.f_code.co_filename != file
        self.files[file] = None
        self.functions[file, name] = None


def visits(work: Callable[[], object]) -> Visits:
    """Run `work`, and return the files and functions that were entered."""
    found = Visits()
    sys.setprofile(found.profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def reading(path: Path, *, pure: bool, cold: bool) -> Visits:
    """Return the files and functions that are entered to read the manifest.

    Unless `cold`, the manifest is read once before the count, so that tables are already built."""

    def documents() -> list[Document]:
        found = read_manifest_files([str(path)], BytesIO())
        return [each for each in found if isinstance(each, Document)]

    def submit() -> object:
        return read_wish(documents())

    contents = [each.content for each in documents()]
    work = (lambda: list(read_documents(contents))) if pure else submit
    if not cold:
        work()
    return visits(work)


def main() -> None:
    """Print the counts of each manifest.

    For a single manifest, also list the source files that parsing it enters."""
    parser = argparse.ArgumentParser(
        description="Count the files and functions that parsing a manifest enters"
    )
    parser.add_argument("name", nargs="?", help="file name in examples/pods (default: all)")
    parser.add_argument(
        "--pure", action="store_true", help="count only the step from documents to pods"
    )
    parser.add_argument(
        "--cold", action="store_true", help="also count tables that a process builds once"
    )
    given = parser.parse_args()
    if given.cold and not given.name:
        parser.error("--cold needs the name of one manifest")
    paths = [SAMPLES / given.name] if given.name else sorted(SAMPLES.glob("*.yaml"))
    found = {path: reading(path, pure=given.pure, cold=given.cold) for path in paths}
    for path, each in sorted(found.items(), key=lambda item: len(item[1].files)):
        counts = f"{len(each.files):3} files {len(each.functions):4} functions {each.jumps:4} jumps"
        sys.stdout.write(f"{counts}  {path.name}\n")
    if given.name:
        for file in found[paths[0]].files:
            sys.stdout.write(f"{Path(file).relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
