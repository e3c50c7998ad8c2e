"""How old the copies of the ledger in a folder are, for the doctor."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from apportion.core.doctor.facts import ArchiveFacts


def archive_facts(folder: Path, *, now: datetime) -> ArchiveFacts:
    """The archives (`*.jsonl`) in it; one that nobody can look at counts as none."""
    try:
        made = [path.stat().st_mtime for path in folder.glob("*.jsonl")]
    except OSError:
        made = []
    age_s = now.timestamp() - max(made) if made else 0.0
    return ArchiveFacts(folder=str(folder), archives=len(made), newest_age_s=age_s)
