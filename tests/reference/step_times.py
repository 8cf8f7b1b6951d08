"""Simple step times for small random cases: constant, and one that depends on every argument."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ConstantTimes:
    """Every prefill and every decode step takes the same time, ms."""

    prefill: float
    decode: float

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        """`prefill` if there is anything to compute."""
        return self.prefill if n > 0 and isl > prefix else 0.0

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:
        """`decode`, whatever the batch."""
        return self.decode


@dataclass(frozen=True)
class GrowingTimes:
    """Steps that grow with every argument by powers of two, so sums are exact and a wrong argument shows."""

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        """2 ms, 1/8 per computed token, 1/64 per token of prefix, 1/4 per prompt."""
        return 2.0 + n * (isl - prefix) / 8.0 + n * prefix / 64.0 + n / 4.0

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:
        """1 ms, 1/16 per request, 1/256 per token of context, 1/128 per token of mean context."""
        return 1.0 + n / 16.0 + total_context / 256.0 + mean_context / 128.0
