"""Speculative decoding is reproduced draw by draw."""

import pytest

from benchmarks.fidelity import check_case
from tests.golden.files import case, document
from tests.reference.acceptance import Acceptance
from tests.reference.plain_replay import replay

# Decode passes of 40 consecutive requests of 30 tokens, one in flight, as observed on the peer.
OBSERVED = [
    ((0.7, 0.5), 3, [15, 18, 15, 16, 15, 17, 16, 12, 16, 18, 15, 13, 14, 16, 13, 14, 15, 14, 13, 13, 12, 14, 16, 18]),
    ((0.5,), 42, [19, 20, 19, 19, 20, 19, 20, 18, 18, 19, 21, 20, 20, 19, 21, 20, 19, 21, 18, 18, 19, 21, 20, 18]),
    ((1.0, 0.5), 3, [11, 13, 13, 13, 13, 12]),
    ((0.5, 0.0, 0.5), 3, [21, 22, 21, 19, 22, 18]),
]


@pytest.mark.parametrize(("rates", "seed", "passes"), OBSERVED)
def test_acceptance_drawn_takes_as_many_passes_as_observed(
    rates: tuple[float, ...], seed: int, passes: list[int]
) -> None:
    acceptance = Acceptance(rates, seed)
    counted = []
    for _ in passes:
        left, count = 29, 0
        while left > 0:
            left -= 1 + acceptance.accepted(len(rates))
            count += 1
        counted.append(count)
    assert counted == passes


def test_speculating_batch_equals_the_peer_request_by_request() -> None:
    verdict = check_case(case("oracle-public", "pub-133-ngram-fixed"), None, document("oracle-public-requests"), replay)
    assert verdict.problem is None
    assert [found for found in verdict.deviations if found.is_out] == []
    assert "request.last_token_ms" in {found.name for found in verdict.deviations}
