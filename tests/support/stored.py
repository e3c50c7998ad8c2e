"""A usage region in memory, for tests that write to it like a container's process."""


class StoredBytes(bytearray):
    """A bytearray behind `region.Stored`."""

    def read(self, at: int, count: int) -> bytes:
        """Return `count` bytes from `at` on."""
        return bytes(self[at : at + count])

    def write(self, at: int, data: bytes) -> None:
        """Write these bytes at `at`."""
        self[at : at + len(data)] = data
