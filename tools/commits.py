"""Check a commit message: `python tools/commits.py FILE`, which the commit-msg hook runs.

The subject is imperative, starts with a capital letter, has at most 72 characters and no full stop.
An empty line follows it. Uses only the standard library, because the hook runs outside any
environment."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

SUBJECT_MAX = 72
BY_GIT = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ?")
NOT_IMPERATIVE = re.compile(
    r"(A|An|And|Both|Each|Every|How|If|Its?|No|Nobody|Of|One|Only|Other|Some|That|The|Their|There|"
    r"These|They|This|Those|To|What|When|Where|Who|Whoever|Whose|Why|With|\w{2,}(?<!e)ed|"
    r"\w{2,}ing|\w{2,}[^su]s)"
)
IMPERATIVE = re.compile(r"Alias|Bias|Bring|Embed|Ping|Shed|String")


def faults(message: str) -> Iterator[str]:
    """Yield a message for each rule that a commit message breaks. Comment lines are ignored."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if BY_GIT.match(subject):
        return
    if not subject.strip():
        yield "the first line is empty; write what the commit does: Add retries to the binder"
        return
    if len(subject) > SUBJECT_MAX:
        yield f"the subject has {len(subject)} characters; the limit is {SUBJECT_MAX}"
    if subject.endswith("."):
        yield "the subject ends with a full stop; remove it"
    first = subject.split()[0]
    if not first[0].isupper():
        yield f"the subject starts with {first!r}; start with a capital letter"
    elif NOT_IMPERATIVE.fullmatch(first) and not IMPERATIVE.fullmatch(first):
        yield f"the subject starts with {first!r}; start with an imperative: Add, Fix, Remove"
    if len(lines) > 1 and lines[1].strip():
        yield "the second line has text; leave it empty and start the body on the third"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1]).read_text("utf-8")))
    for fault in found:
        print(f"commit message: {fault}", file=sys.stderr)  # noqa: T201
    sys.exit(1 if found else 0)
