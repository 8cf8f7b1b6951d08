"""What the bounds assume of measured step times between their samples, audited on engines of every kind."""

import numpy as np
import pytest

from app.schemas.deployment import ParallelShape
from workers.search.bounds import DECODE_SLACK, Load, curve
from workers.timing.aic import aic_times, engine_identity

ENGINES = [
    ("Qwen/Qwen3-32B-FP8", "vllm", ParallelShape(tp=2)),
    ("Qwen/Qwen3-32B-FP8", "trtllm", ParallelShape(tp=1)),
    ("Qwen/Qwen3-235B-A22B-FP8", "vllm", ParallelShape(tp=1, attention_dp=8, moe_ep=8)),
    ("deepseek-ai/DeepSeek-V3", "sglang", ParallelShape(tp=8, moe_ep=8)),
]
LOADS = [Load(4000, 1000, 2560, 256, None, False), Load(300, 700, 400, 40, None, False)]
MAX_TOKENS = 8192


@pytest.mark.parametrize("load", LOADS, ids=["long", "short"])
@pytest.mark.parametrize(("model", "backend", "shape"), ENGINES, ids=lambda value: str(value)[:24])
def test_measured_times_never_dip_below_the_curve(model: str, backend: str, shape: ParallelShape, load: Load) -> None:
    times = aic_times(engine_identity(model, "h200_sxm", backend, shape))
    most = min(64, load.in_flight)
    best = curve(times, load, most, MAX_TOKENS, True, True)
    rng = np.random.default_rng(1)
    for _ in range(150):
        n, context = int(rng.integers(1, most + 1)), int(rng.integers(load.isl, load.isl + load.osl + 1))
        step_ms = times.decode_ns(n, context) / 1e6
        assert best.step_ms <= step_ms
        assert n / step_ms <= best.rate[n] * (1 + 1e-12)
    for _ in range(150):
        tokens = int(rng.integers(1, MAX_TOKENS + 1))
        n = int(rng.integers(1, min(most, tokens // load.isl + 2, tokens) + 1))
        prefix = int(rng.integers(0, load.isl)) if rng.random() < 0.5 else 0
        length = min(load.isl, prefix + max(1, tokens // n))
        computed = n * (length - prefix)
        assert computed * best.token_ms <= times.prefill_ns(n, length, prefix) / 1e6


def test_decode_times_hardly_fall_with_the_context() -> None:
    times = aic_times(engine_identity("Qwen/Qwen3-235B-A22B-FP8", "h200_sxm", "vllm", ParallelShape(tp=4, moe_ep=4)))
    for n in (1, 17, 64):
        row = times.decode_row(n, np.unique(np.geomspace(64, 30_000, 120).astype(np.int64))).astype(float)
        assert np.all(row >= np.maximum.accumulate(row) * (1 - DECODE_SLACK))
