"""Shrink screenshots: reduce a PNG to 256 colours without a visible difference."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS_MAX = 256
KEPT = 160
"""The most frequent colours are kept; others map to the nearest of them or of a coarse grid."""


def small(png: bytes) -> bytes:
    """Return the picture as a PNG of at most 256 colours."""
    pixels = _pixels(png)
    height, width, _ = pixels.shape
    packed = (pixels[..., 0].astype(np.uint32) << 16) | (
        pixels[..., 1].astype(np.uint32) << 8
    ) | pixels[..., 2]  # fmt: skip
    colours, inverse, counts = np.unique(packed, return_inverse=True, return_counts=True)
    chosen = _palette(colours, counts)
    nearest = _nearest(colours, chosen)
    indexes = nearest[inverse.reshape(height, width)].astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in indexes)
    palette = b"".join(int(colour).to_bytes(3, "big") for colour in chosen)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return SIGNATURE + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", header),
            (b"PLTE", palette),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        )
    )


def _palette(colours: Any, counts: Any) -> Any:
    """Return at most COLOURS_MAX colours that approximate these colours."""
    order = np.argsort(counts)[::-1]
    if len(colours) <= COLOURS_MAX:
        return colours
    kept, rest = colours[order[:KEPT]], colours[order[KEPT:]]
    for shift in range(3, 8):
        mask = 0xFF >> shift << shift
        net = np.unique(rest & (mask << 16 | mask << 8 | mask)) | (
            (1 << shift >> 1) * 0x010101
        )  # fmt: skip
        if len(net) <= COLOURS_MAX - KEPT:
            return np.unique(np.concatenate([kept, net]))
    return kept


def _nearest(colours: Any, chosen: Any) -> Any:
    """Return, for each colour, the index of the nearest chosen colour."""

    def parts(packed: Any) -> Any:
        return np.stack([packed >> 16 & 255, packed >> 8 & 255, packed & 255], axis=1).astype(int)

    wanted, there = parts(colours), parts(chosen)
    slices = (wanted[at : at + 2_000] for at in range(0, len(wanted), 2_000))
    return np.concatenate(
        [((each[:, None] - there[None]) ** 2).sum(axis=2).argmin(axis=1) for each in slices]
    )


def _pixels(png: bytes) -> Any:
    """Return the rows of RGB pixels of an 8-bit PNG as browsers write it."""
    width = height = channels = 0
    data = b""
    for kind, body in _chunks(png):
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            channels = {2: 3, 6: 4}[colour]
            assert depth == 8
        elif kind == b"IDAT":
            data += body
    raw = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    rows = np.zeros((height, width * channels), np.uint8)
    before = np.zeros(width * channels, np.uint8)
    for at, line in enumerate(raw):
        before = rows[at] = _unfiltered(int(line[0]), line[1:], before, channels)
    return rows.reshape(height, width, channels)[..., :3]


def _unfiltered(kind: int, line: Any, up: Any, channels: int) -> Any:
    """Undo PNG's filter of this kind for one row of pixels."""
    if kind == 0:
        return line
    if kind == 2:
        return line + up
    row = line.astype(int).reshape(-1, channels)
    above = up.astype(int).reshape(-1, channels)
    left = np.zeros(channels, int)
    corner = np.zeros(channels, int)
    for at in range(len(row)):
        if kind == 1:
            guess = left
        elif kind == 3:
            guess = (left + above[at]) // 2
        else:
            guess = _paeth(left, above[at], corner)
        left = row[at] = (row[at] + guess) & 255
        corner = above[at]
    return row.reshape(-1).astype(np.uint8)


def _paeth(left: Any, up: Any, corner: Any) -> Any:
    guess = left + up - corner
    a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
    return np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += 12 + size


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)
