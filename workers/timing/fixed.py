"""Fixed step times: the same milliseconds whatever the batch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FixedTimes:
    """Constant pass times, ms; a pass that does both costs the sum. Source: engine spec, section 10."""

    prefill_pass_ms: float
    decode_pass_ms: float

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        """`prefill_pass_ms` when there is anything to compute, else 0."""
        return self.prefill_pass_ms if n > 0 and isl > prefix else 0.0

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:  # noqa: ARG002 the shared signature
        """`decode_pass_ms` when any request decodes, else 0."""
        return self.decode_pass_ms if n > 0 else 0.0
