"""Polynomial step times: prefill grows with the computed tokens, decode with the used share of the KV pool."""

from dataclasses import dataclass

from workers.timing.step_time import whole_nanoseconds

PREFILL_COEFFICIENTS = (4.209989e-07, 1.518344e-02, 1.650142e01)
DECODE_COEFFICIENTS = (-25.74, 54.01, 5.74)


@dataclass(frozen=True, slots=True)
class PolynomialTimes:
    """Quadratic pass times, ms, whole nanoseconds. Source: engine spec, section 10.

    pool_tokens: KV tokens of one rank, num_blocks * block_size; the decode polynomial's unit.
    """

    pool_tokens: int

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        """A quadratic of n * (isl - prefix) computed tokens; 0 when there are none."""
        tokens = n * (isl - prefix)
        if tokens <= 0:
            return 0.0
        square, linear, constant = PREFILL_COEFFICIENTS
        return whole_nanoseconds(square * (tokens * tokens) + linear * tokens + constant)

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:  # noqa: ARG002 the shared signature
        """A quadratic of the share of the pool that the contexts fill, at least 1 ms; 0 when nothing decodes."""
        if n <= 0:
            return 0.0
        used = min(1.0, total_context / self.pool_tokens)
        square, linear, constant = DECODE_COEFFICIENTS
        return whole_nanoseconds(max(1.0, square * (used * used) + linear * used + constant))
