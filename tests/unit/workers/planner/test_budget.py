"""Bounds around decisions."""

import pytest

from workers.planner.budget import Band, Counts

PAIR = {"prefill": 1, "decode": 1}


def agg_band(max_gpus: int, min_gpus: int = -1, width: int = 1, floor: int = 1) -> Band:
    return Band(max_gpus, min_gpus, {"agg": width}, {"agg": floor})


def pair_band(max_gpus: int, min_gpus: int = -1, widths: Counts = PAIR) -> Band:
    return Band(max_gpus, min_gpus, widths, PAIR)


@pytest.mark.parametrize(
    ("band", "now", "wanted", "allowed"),
    [
        (agg_band(8), 7, 8, 8),
        (agg_band(8), 8, 9, 8),
        (agg_band(5, width=2), 2, 3, 2),
        (agg_band(8), 2, 10, 8),
        (agg_band(8, min_gpus=4), 5, 4, 4),
        (agg_band(8, min_gpus=4), 4, 3, 4),
        (agg_band(8, min_gpus=4), 2, 3, 3),
        (agg_band(16, min_gpus=8, width=2), 8, 1, 4),
        (agg_band(7, width=2), 4, 5, 3),
        (agg_band(2, floor=3), 3, 4, 3),
    ],
    ids=[
        "room",
        "ceiling",
        "width",
        "far-up",
        "to-floor",
        "at-floor",
        "floor-grows-nothing",
        "far-down",
        "over",
        "unfit",
    ],
)
def test_band_of_one_role_allows(band: Band, now: int, wanted: int, allowed: int) -> None:
    assert band.fit({"agg": now}, {"agg": wanted}) == {"agg": allowed}


@pytest.mark.parametrize(
    ("band", "now", "wanted", "allowed"),
    [
        (pair_band(8), (5, 3), (6, 2), (6, 2)),
        (pair_band(8), (5, 3), (6, 3), (5, 3)),
        (pair_band(8), (5, 3), (6, 4), (5, 3)),
        (pair_band(8), (5, 3), (4, 3), (4, 3)),
        (pair_band(8, widths={"prefill": 2, "decode": 1}), (2, 4), (3, 3), (2, 4)),
        (pair_band(8), (5, 2), (6, 3), (5, 3)),
        (pair_band(8), (8, 4), (8, 4), (5, 3)),
        (pair_band(8, min_gpus=8), (5, 3), (4, 3), (5, 3)),
        (pair_band(8, min_gpus=8), (5, 3), (6, 2), (6, 2)),
    ],
    ids=["exchange", "ceiling", "both-up", "down", "no-fit", "one-left", "over", "floor", "floor-exchange"],
)
def test_band_of_two_roles_allows(
    band: Band, now: tuple[int, int], wanted: tuple[int, int], allowed: tuple[int, int]
) -> None:
    def counts(pair: tuple[int, int]) -> Counts:
        return {"prefill": pair[0], "decode": pair[1]}

    assert band.fit(counts(now), counts(wanted)) == counts(allowed)
