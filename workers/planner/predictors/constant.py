"""The next interval will be like the last."""

from workers.planner.predictors.predictor import History

MIN_POINTS = 1


class ConstantPredictor:
    """Last value; 0 before any."""

    def __init__(self) -> None:
        self._history = History()

    def add(self, value: float) -> None:
        """See `Predictor`."""
        self._history.add(value)

    def predict(self) -> float:
        """See `Predictor`."""
        return max(0.0, self._history.last)
