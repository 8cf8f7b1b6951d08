"""What is kept of replays for the next ones, and when it goes."""

import threading

from workers.replay.kept import Kept


class _Owner:
    pass


def test_value_is_made_once_for_each_owner_and_key() -> None:
    kept, one, other = Kept[object](most=8), _Owner(), _Owner()

    value = kept.of((one,), object, "a")

    assert kept.of((one,), object, "a") is value
    assert kept.of((one,), object, "b") is not value
    assert kept.of((other,), object, "a") is not value


def test_oldest_values_go_beyond_the_count_and_the_weight() -> None:
    owners = [_Owner() for _ in range(4)]
    few, light = Kept[object](most=2), Kept[object](most=8, most_weight=10)
    for kept in (few, light):
        values = [kept.of((owner,), object, weight=4) for owner in owners]
        assert [
            kept.of((owner,), object, weight=4) is value for owner, value in zip(owners[2:], values[2:], strict=True)
        ] == [
            True,
            True,
        ]
        assert kept.of((owners[0],), object, weight=4) is not values[0]


def test_value_heavier_than_all_that_may_be_kept_is_kept_alone() -> None:
    kept, owner = Kept[object](most=8, most_weight=10), _Owner()

    value = kept.of((owner,), object, weight=11)

    assert kept.of((owner,), object, weight=11) is value


def test_every_thread_has_values_of_its_own() -> None:
    kept, owner, seen = Kept[object](most=8), _Owner(), []
    mine = kept.of((owner,), object)
    thread = threading.Thread(target=lambda: seen.append(kept.of((owner,), object)))
    thread.start()
    thread.join()

    assert seen[0] is not mine
    assert kept.of((owner,), object) is mine
