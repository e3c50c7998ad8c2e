"""The tree without its compiled modules, in a folder of its own.

A compiled module cannot be asked to stand aside: Python takes it before its source. So what is to
run as it is written runs in a copy that has nothing but sources.

    python -m tests.support.interpreted tests/unit      pytest on such a copy"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tidy.tree import ROOT, files


def copy_tree(target: Path) -> None:
    """Copy all our files, which compiled ones are not."""
    for path in files():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target / path)


def environment(copy: Path) -> dict[str, str]:
    """Under which Python imports from the copy, and nobody insists on compiled modules."""
    paths = os.pathsep.join(str(copy / each) for each in ("services", "schemas"))
    given = {
        name: value for name, value in os.environ.items() if name != "APPORTION_REQUIRE_COMPILED"
    }
    return given | {"PYTHONPATH": paths}


def main() -> int:
    """The exit status of pytest."""
    with tempfile.TemporaryDirectory(prefix="apportion-interpreted-") as folder:
        copy = Path(folder)
        copy_tree(copy)
        command = [sys.executable, "-m", "pytest", *sys.argv[1:]]
        return subprocess.run(command, cwd=copy, env=environment(copy), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
