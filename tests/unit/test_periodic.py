"""Work that is done again and again, whatever becomes of one turn."""

import threading

from workers.periodic import Periodic


def test_work_that_fails_once_is_done_again() -> None:
    turns, enough = [], threading.Event()

    def work() -> None:
        turns.append(1)
        if len(turns) == 1:
            raise RuntimeError("planted")
        enough.set()

    periodic = Periodic("worker", lambda: 0.001, work)
    periodic.start()
    assert enough.wait(30)
    periodic.stop()


def test_stop_before_the_start_is_harmless_and_lasts() -> None:
    turns: list[int] = []
    periodic = Periodic("worker", lambda: 0.0, lambda: turns.append(1))
    periodic.stop()
    periodic.start()
    periodic.stop()
    assert turns == []
