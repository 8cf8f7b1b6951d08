"""KV-aware routing in the plain replay: the peer's five-request trace on two engines (traffic probes K01 to K04)."""

from typing import Any

import numpy as np
import orjson
import pytest

from tests.golden import files
from tests.reference.plain_replay import replay
from workers.cases import read_case
from workers.replay.fleet import Fleet, KvRouter, Pool
from workers.timing.fixed import FixedTimes
from workers.traffic.mooncake import TraceDrive, mooncake_batch
from workers.traffic.requests import RequestBatch
from workers.traffic.trace_rows import read_rows

PROBES = ("K01-kv-default", "K02-kv-prefill-scale8", "K03-kv-scale0", "K04-kv-credit0")


def batch_of(probe: dict[str, Any]) -> RequestBatch:
    text = b"\n".join(orjson.dumps(row) for row in probe["trace"])
    return mooncake_batch(read_rows(text, 64), TraceDrive(trace_block_size=64))


@pytest.mark.parametrize("name", PROBES)
def test_requests_go_where_the_peer_sends_them_by_cache_and_load(name: str) -> None:
    probe = files.case("traffic-probes", name)
    pool = Pool("agg", "vllm", 2, 1, 1, 100_000, 64, 8192, 256, FixedTimes(100.0, 10.0))

    seen = replay(Fleet(agg=pool, router=KvRouter(**probe["config"]["router_config"])), batch_of(probe))

    for request, relation, other in probe["relations"]:
        assert (seen.worker[request] == seen.worker[other]) == (relation == "same_worker"), (request, other)
    assert seen.end_of_replay_ms == probe["expected"]["duration_ms"]


@pytest.mark.parametrize("name", ["router-pub-002-kv", "router-pub-008-kv-pd"])
def test_routed_sessions_end_when_the_peers_do(name: str) -> None:
    """Equal costs are drawn at random there, so only what did not vary between its runs is compared."""
    case = files.case("oracle-router-public", name) | {"stack": "dynamo"}
    reference = read_case(case, files.TRACES)

    seen = replay(reference.fleet, reference.batch)

    assert not np.isnan(seen.last_token_ms).any()
    assert seen.generated_tokens.sum() == case["expected"]["total_output_tokens"]
    if "duration_ms" not in case.get("unstable", {}):
        assert seen.end_of_replay_ms == pytest.approx(case["expected"]["duration_ms"], rel=1e-9)
