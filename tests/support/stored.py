"""A usage region in memory, for tests that write into it what a process of a container would."""


class StoredBytes(bytearray):
    """Bytes behind `region.Stored`."""

    def read(self, at: int, count: int) -> bytes:
        """As many from there on."""
        return bytes(self[at : at + count])

    def write(self, at: int, data: bytes) -> None:
        """Put these bytes there."""
        self[at : at + len(data)] = data
