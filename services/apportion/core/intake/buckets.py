"""How much an agent may say: a bucket of tokens that fills with time.

Invariant: over any time no more is taken out than the bucket holds, and what flowed in meanwhile.
"""


class Bucket:
    """`burst` tokens at most, and `rate` more each second. Times are of one clock, in seconds."""

    __slots__ = ("_at_s", "_burst", "_left", "_rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at_s = now_s

    def take(self, tokens: float, now_s: float) -> float:
        """Take them, and return for how many seconds whoever takes has to wait first.

        More than the bucket can ever hold is taken as all that it holds."""
        self._left = self._filled(now_s) - min(tokens, self._burst)
        self._at_s = now_s
        return max(0.0, -self._left / self._rate)

    def may_take(self, tokens: float, now_s: float) -> bool:
        """Take them if they are there; else nothing."""
        if self._filled(now_s) < tokens:
            return False
        self.take(tokens, now_s)
        return True

    def full(self, now_s: float) -> bool:
        """Whether nobody has taken anything for so long that it tells nothing any more."""
        return self._filled(now_s) >= self._burst

    def _filled(self, now_s: float) -> float:
        return min(self._burst, self._left + self._rate * max(0.0, now_s - self._at_s))
