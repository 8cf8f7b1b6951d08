"""What replays are timed on, as configurations in the peer's own format; one of several configurations is one call."""

import copy
import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden import files

Config = dict[str, Any]
_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Load:
    """Configurations replayed in one call.

    goal: ratio to the peer, None where it cannot run them: its router comes with another execution stack. threads: with how
    many ours are replayed, one measurement for each; the goal is that of the last.
    """

    name: str
    configs: list[Config]
    goal: float | None
    stack: str = "engine"
    threads: tuple[int, ...] = (1,)


def loads(folder: Path) -> list[Load]:
    """Every load; traces are written into `folder`."""
    conversation = _written(
        folder / "conversation.jsonl", files.trace("mooncake_conversation.jsonl").decode().splitlines()
    )
    doubled = _written(folder / "doubled.jsonl", _doubled(conversation))
    mixed = _written(folder / "mixed.jsonl", poisson_rows(20_000, 10.0, seed=1))
    return [
        Load("reference trial", [_reference()], 3000),
        Load("16 mixed candidates", [_candidate(i) for i in range(16)], 2500, threads=(1, 2)),
        Load("20,000 Poisson requests of mixed lengths", [on_trace(mixed, 4)], 500, threads=(1, 2)),
        Load("conversation trace, 3 replicas", [on_trace(conversation, 3)], 350, threads=(1, 2)),
        Load("conversation trace twice as dense, 16 replicas", [on_trace(doubled, 16)], 1200, threads=(1, 2)),
        Load("reference disaggregated trial", [_disaggregated()], 1000),
        Load("conversation trace, KV router, 8 replicas", [on_trace(conversation, 8) | _KV_ROUTER], None, "dynamo"),
    ]


_KV_ROUTER: Config = {"router": {"policy": "kv_router"}}


def of_size(requests: int) -> Load:
    """The reference trial with another number of requests."""
    config = _reference()
    config["traffic"]["stop"] = {"requests": requests}
    return Load(f"reference trial of {requests:,} requests", [config], None)


def poisson_rows(num: int, rate: float, seed: int) -> Iterable[str]:
    """Rows of a trace: Poisson arrivals, `rate` per second, log-normal lengths of 1,000 and 200 tokens in the median.

    No two share a block.
    """
    draw = random.Random(seed)
    now_ms, blocks = 0.0, itertools.count()
    for _ in range(num):
        now_ms += draw.expovariate(rate) * 1000.0
        isl, osl = (
            max(1, min(most, int(draw.lognormvariate(mean, 0.8)))) for mean, most in ((6.9, 16_000), (5.3, 2_000))
        )
        ids = list(itertools.islice(blocks, -(-isl // _BLOCK_TOKENS)))
        yield json.dumps({"timestamp": int(now_ms), "input_length": isl, "output_length": osl, "hash_ids": ids})


def on_trace(path: Path, replicas: int) -> Config:
    """A trace at its own pace on replicas of the reference engine."""
    config = _reference()
    config["traffic"] = {
        "source": {"type": "trace", "paths": [str(path.resolve())], "format": "mooncake"},
        "load": {"type": "trace_timestamps"},
    }
    config["engine"]["workers"]["aggregated"]["parallelism"]["replicas"] = replicas
    return config


def _reference() -> Config:
    config: Config = copy.deepcopy(files.cases("reference-trial")[0]["config"])
    return config


def _candidate(i: int) -> Config:
    """Candidate i of a small factorial: parallel shape, replicas, token budget."""
    config = _reference()
    worker = config["engine"]["workers"]["aggregated"]
    worker["parallelism"] = {"tensor": (1, 2, 4, 8)[i % 4], "replicas": (1, 2, 3, 4)[i // 4]}
    worker["scheduler"] = {"max_batched_tokens": (2048, 4096, 8192, 16384)[(i + i // 4) % 4]}
    return config


def _disaggregated() -> Config:
    config = _reference()
    config["engine"]["mode"] = "disaggregated"
    config["engine"]["workers"] = {
        role: {"parallelism": {"tensor": 2, "replicas": 2}} for role in ("prefill", "decode")
    }
    return config


def _doubled(trace: Path) -> Iterable[str]:
    """Every request of a trace a second time, half a second later and with prefixes of its own."""
    for line in trace.read_text().splitlines():
        row = json.loads(line)
        yield line
        more = {"timestamp": row["timestamp"] + 500, "hash_ids": [10_000_000 + block for block in row["hash_ids"]]}
        yield json.dumps(row | more)


def _written(path: Path, rows: Iterable[str]) -> Path:
    path.write_text("".join(f"{row}\n" for row in rows))
    return path
