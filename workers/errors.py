"""Errors of the pure half.

EvaluationError
+-- InfeasibleError     the deployment cannot serve this load; a result, not a fault
+-- UnsupportedError    no performance data or no backend support
+-- StuckError          the replay can make no progress (livelock of the modelled engine)
+-- StoppedError        should_stop said so (deadline or cancel)

SamplerError            the optimizer's process is not there or cannot answer; no trial's fault
"""

from collections.abc import Mapping

from app.schemas.status import ReasonCode as ReasonCode  # workers.replay takes it from here


class EvaluationError(Exception):
    """Base of every error that ends a trial with a reason; `numbers` are the figures of the sentence, unit in name."""

    def __init__(self, code: ReasonCode, detail: str, numbers: Mapping[str, float] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.numbers: Mapping[str, float] = numbers or {}


class InfeasibleError(EvaluationError):
    """The deployment cannot serve this load."""


class UnsupportedError(EvaluationError):
    """No performance data, or the backend cannot run this shape."""


class StuckError(EvaluationError):
    """The modelled engine makes no progress; the peer aborts here too."""


class StoppedError(EvaluationError):
    """The caller asked the replay to stop."""


class SamplerError(Exception):
    """No next trials can be had: the optimizer's process is missing or failed."""
