"""A thread that does one piece of work again and again, for the rescuer and the watchdog."""

import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger()
_STOP_WITHIN_S = 5.0


class Periodic:
    """Does `work`, every `every_s()` seconds, until stopped.

    name: of the thread and in the log. An error ends that one turn only: a finding that the work cannot cope with must
    not end all later ones.
    """

    def __init__(self, name: str, every_s: Callable[[], float], work: Callable[[], object]) -> None:
        self._name = name
        self._every_s = every_s
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, after one pause."""
        self._thread.start()

    def stop(self) -> None:
        """End after the turn under way; harmless before the start, since a worker can be told to go while it starts."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=_STOP_WITHIN_S)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s()):
            try:
                self._work()
            except Exception:
                log.exception("periodic_work_failed", thread=self._name)
