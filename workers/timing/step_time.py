"""What every step-time model shares; the signature itself is `workers.replay.fleet.StepTimes`."""

_NANOSECONDS_PER_S = 10**9


def whole_nanoseconds(duration_ms: float) -> float:
    """The duration rounded to the nearest nanosecond, ms: the modelled clock knows nothing finer.

    The modelled system rounds the exact value of the float in seconds. Products in floating point would decide the
    many near-ties of the polynomial model differently, and the clock would drift by nanoseconds.
    """
    numerator, denominator = (duration_ms / 1000.0).as_integer_ratio()
    return (2 * numerator * _NANOSECONDS_PER_S + denominator) // (2 * denominator) / 1e6
