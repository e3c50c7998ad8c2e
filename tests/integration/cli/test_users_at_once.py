"""Two processes change the users of one folder at the same time, and both changes are kept."""

import subprocess
import sys
from pathlib import Path

from apportion.runtime.jetstream.server.users import Users

EACH = 12
"""Enough overlapping changes that some would be lost in each run without the lock."""
_ADD = """
import sys
from pathlib import Path
from apportion.runtime.jetstream.server.users import Users
users = Users(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    users.add("operator", f"{sys.argv[2]}-{number}", ())
"""


def test_of_two_processes_that_add_users_at_once_neither_undoes_the_other(tmp_path: Path) -> None:
    """Two processes that add users at the same time do not lose each other's change."""
    Users(tmp_path).begin()
    both = [
        subprocess.Popen(
            [sys.executable, "-c", _ADD, str(tmp_path), name, str(EACH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("anna", "ben")
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in both:
        process.communicate(timeout=60)
        assert process.returncode == 0
    wanted = {f"{name}-{number}" for name in ("anna", "ben") for number in range(EACH)}
    assert wanted <= {member.name for member in Users(tmp_path).read().members}
