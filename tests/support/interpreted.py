"""Run tests in a copy of the tree without compiled modules, so that Python runs their sources.

python -m tests.support.interpreted tests/unit      run pytest on such a copy"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tidy.tree import ROOT, files


def copy_tree(target: Path) -> None:
    """Copy all files of the repository except compiled modules."""
    for path in files():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target / path)


def environment(copy: Path) -> dict[str, str]:
    """Return an environment that imports from the copy and does not require compiled modules."""
    paths = os.pathsep.join(str(copy / each) for each in ("services", "schemas"))
    given = {
        name: value for name, value in os.environ.items() if name != "APPORTION_REQUIRE_COMPILED"
    }
    return given | {"PYTHONPATH": paths}


def main() -> int:
    """Run pytest on a copy of the tree without compiled modules, and return its exit status."""
    with tempfile.TemporaryDirectory(prefix="apportion-interpreted-") as folder:
        copy = Path(folder)
        copy_tree(copy)
        command = [sys.executable, "-m", "pytest", *sys.argv[1:]]
        return subprocess.run(command, cwd=copy, env=environment(copy), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
