"""Predictions beside engines that were measured: the sample of real runs that ships with the performance data.

python -m benchmarks.silicon [--each 6] [--peer COMMAND] [--out RESULT.json]

Aggregated runs without attention data parallelism of checkpoints that the catalog has in the measured precision, `--each` of a
model, GPU and backend, drawn by a fixed seed. Each is replayed as a closed loop of as many requests at a time as were measured,
eight times as many in all, under default batching; the first of each group by the peer too. Prints, for each group, the median
of predicted over measured and the median distance from it.
"""

import argparse
import csv
import json
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.recommend import replayed_by_peer
from benchmarks.scratch import circumstances
from workers.cases import read_case
from workers.errors import EvaluationError
from workers.replay.loop import replay_many
from workers.timing.perf_data import package

_SEED, _REQUESTS_PER_SLOT, _LEAST_REQUESTS = 11, 8, 64
_CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
METRICS = ("ttft", "tpot")

CHECKPOINTS = {
    ("Qwen/Qwen3-32B", "fp8"): "Qwen/Qwen3-32B-FP8-Static-PerTensor",
    ("Qwen/Qwen3-235B-A22B-FP8", "fp8_block"): "Qwen/Qwen3-235B-A22B-FP8",
    ("meta-llama/Llama-3.1-70B", "fp8"): "nvidia/Llama-3.1-70B-Instruct-FP8",
    ("deepseek-ai/DeepSeek-R1", "fp8_block"): "deepseek-ai/DeepSeek-R1",
    ("deepseek-ai/DeepSeek-V3", "fp8_block"): "deepseek-ai/DeepSeek-V3",
    ("openai/gpt-oss-120b", "nvfp4"): "openai/gpt-oss-120b",
}
"""(model, precision of its expert weights) in the sample to the checkpoint that holds it."""
_DENSE = frozenset({"Qwen/Qwen3-32B-FP8-Static-PerTensor", "nvidia/Llama-3.1-70B-Instruct-FP8"})

Row = Mapping[str, str]
Group = tuple[str, str, str]


def sample() -> dict[Group, list[Row]]:
    """Runs that can be compared, by checkpoint, GPU and backend."""
    root = package().load().__file__
    assert root is not None
    groups: dict[Group, list[Row]] = defaultdict(list)
    with (Path(root).parent / "systems" / "silicon_sample.csv").open() as file:
        for row in csv.DictReader(file):
            checkpoint = CHECKPOINTS.get((row["model_path"], row["moe_quant_mode"]))
            if checkpoint and row["mode"] == "agg" and row["attention_dp_size"] in ("", "1") and concurrency(row):
                groups[checkpoint, row["system"], row["backend"]].append(row)
    return groups


def concurrency(row: Row) -> int:
    """Requests at a time; 0 where the sample does not tell."""
    found = _CONCURRENCY.search(row["silicon_data_source"])
    return int(found[1]) if found else 0


def config(group: Group, row: Row) -> dict[str, Any]:
    """A run as a prediction of the peer."""
    model, hardware, backend = group
    parallelism = {"tensor": int(row["tp_size"]), "pipeline": int(row["pp_size"] or 1), "replicas": 1}
    if model not in _DENSE:
        parallelism |= {"moe_tensor": int(row["moe_tp_size"] or 1), "moe_expert": int(row["moe_ep_size"] or 1)}
    slots = concurrency(row)
    return {
        "traffic": {
            "source": {"type": "synthetic", "input_tokens": int(row["isl"]), "output_tokens": int(row["osl"])},
            "load": {"type": "concurrency", "concurrency": slots},
            "stop": {"requests": max(_LEAST_REQUESTS, _REQUESTS_PER_SLOT * slots)},
        },
        "engine": {
            "mode": "aggregated",
            "model": model,
            "hardware": hardware,
            "backend": backend,
            "workers": {
                "aggregated": {"parallelism": parallelism, "scheduler": {"max_sequences": max(256, slots)}},
            },
        },
    }


def ratios(metrics: Mapping[str, Any], row: Row) -> dict[str, float]:
    """Predicted over measured."""
    return {name: float(metrics[f"mean_{name}_ms"]) / float(row[f"silicon_{name}_ms"]) for name in METRICS}


def compared(group: Group, rows: list[Row], peer: str | None) -> dict[str, Any]:
    """One group. Runs that the data package has no answer for are counted."""
    ours: list[dict[str, float]] = []
    theirs: dict[str, Any] = {}
    refused = 0
    for row in rows:
        document = config(group, row)
        try:
            case = read_case({"id": row["id"], "config": document}, Path("/"))
            (metrics,) = replay_many([(case.fleet, case.batch)])
        except EvaluationError:
            refused += 1
            continue
        ours.append(ratios(metrics, row))
        if peer and not theirs:
            theirs = {"peer_first": ratios(replayed_by_peer(peer, document), row), "first": ours[-1]}
    found: dict[str, Any] = {"group": group, "runs": len(ours), "refused": refused, **theirs}
    for name in METRICS if ours else ():
        found[name] = statistics.median(each[name] for each in ours)
        found[f"{name}_off"] = statistics.median(abs(each[name] - 1.0) for each in ours)
    return found


def line(found: Mapping[str, Any]) -> str:
    """A group as a row of a table."""
    cells = [*found["group"], str(found["runs"])]
    for name in METRICS:
        cells += [f"{found[name]:.2f}", f"{found[f'{name}_off']:.0%}"] if name in found else ["", ""]
    if "peer_first" in found:
        cells += [f"{found['first'][name]:.3f} / {found['peer_first'][name]:.3f}" for name in METRICS]
    return f"| {' | '.join(cells)} |"


def groups(each: int, peer: str | None) -> Iterator[dict[str, Any]]:
    """Every group of the sample, at most `each` of its runs."""
    draw = random.Random(_SEED)
    for group, rows in sorted(sample().items()):
        found = compared(group, draw.sample(rows, min(each, len(rows))), peer)
        print(line(found), flush=True)
        yield found


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silicon", description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=6, help="runs of a model, GPU and backend")
    parser.add_argument("--peer", help="the peer's command")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = list(groups(options.each, options.peer))
    with_runs = [each for each in found if each["runs"]]
    for name in METRICS:
        off = statistics.median(each[f"{name}_off"] for each in with_runs)
        print(f"{name}: {off:.0%} off in the median of {len(with_runs)} groups")
    if options.out is not None:
        options.out.write_text(json.dumps({"circumstances": circumstances(), "groups": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
