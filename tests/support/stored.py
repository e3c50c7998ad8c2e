"""Provide a usage region in memory, for tests that write to it like a container's process."""


class StoredBytes(bytearray):
    """A usage region in memory."""

    def read(self, at: int, count: int) -> bytes:
        """Return `count` bytes, starting at offset `at`."""
        return bytes(self[at : at + count])

    def write(self, at: int, data: bytes) -> None:
        """Write these bytes, starting at offset `at`."""
        self[at : at + len(data)] = data
