"""Rows as CSV (RFC 4180, UTF-8), for spreadsheets and for whoever adds up bills."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence


def csv_of(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """The rows under their columns; None is an empty cell."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\r\n", extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(row.get(name)) for name in columns})
    return out.getvalue()


def _cell(value: object) -> object:
    """A float without an exponent: spreadsheets read 1e-06 as they like."""
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else value
