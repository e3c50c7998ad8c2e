"""Provide a usage region in memory, for tests that write to it like a container's process."""


class StoredBytes(bytearray):
    """A bytearray with the interface of `region.Stored`, through which a usage region is read and
    written."""

    def read(self, at: int, count: int) -> bytes:
        """Return `count` bytes, starting at offset `at`."""
        return bytes(self[at : at + count])

    def write(self, at: int, data: bytes) -> None:
        """Write these bytes, starting at offset `at`."""
        self[at : at + len(data)] = data
