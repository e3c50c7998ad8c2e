"""Limit how much an agent may send, with a token bucket."""


class Bucket:
    """Holds at most `burst` tokens, and gains `rate` tokens per second."""

    __slots__ = ("_at_s", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at_s = now_s

    def take(self, tokens: float, now_s: float) -> float:
        """Take tokens, at most `burst`. Return how many seconds the caller must wait first."""
        self._left = self._filled(now_s) - min(tokens, self._burst)
        self._at_s = now_s
        return max(0.0, -self._left / self._rate)

    def may_take(self, tokens: float, now_s: float) -> bool:
        """Take the tokens and return True if all are available; otherwise take none."""
        if self._filled(now_s) < tokens:
            return False
        self.take(tokens, now_s)
        return True

    def full(self, now_s: float) -> bool:
        """Return True if the bucket is full, so that its state need not be kept."""
        return self._filled(now_s) >= self._burst

    def _filled(self, now_s: float) -> float:
        return min(self._burst, self._left + self._rate * max(0.0, now_s - self._at_s))
