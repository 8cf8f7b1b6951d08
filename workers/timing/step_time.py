"""What every step-time model shares; the signature itself is `workers.replay.fleet.StepTimes`."""


def whole_nanoseconds(duration_ms: float) -> float:
    """The duration rounded to the nearest nanosecond, ms: the modelled clock knows nothing finer."""
    return round(duration_ms * 1e6) / 1e6
