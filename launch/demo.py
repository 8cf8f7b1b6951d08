"""One study through the public interface, shown on a terminal."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

from launch.folders import REPOSITORY
from launch.process import LaunchError
from launch.stack import DIRECT, Stack

EXAMPLE = REPOSITORY / "openapi" / "examples" / "concurrency.json"
TERMINAL = {"succeeded", "failed", "cancelled"}
WORKER_WITHIN_S = 900.0
"""The first start on a machine compiles the replay kernel: a minute or two, and several where others compute too."""
STUDY_WITHIN_S = 170.0
POLL_WAIT_S = 3
ROWS_SHOWN = 15
Json = dict[str, Any]


def show_demo(url: str, stack: Stack, begun: float) -> int:
    """Submit the main example, follow it, print ranking, times and what to try; 0 when the study succeeded.

    begun: time.monotonic() when the command started. Raises: LaunchError when the service misbehaves.
    """
    config = json.loads(EXAMPLE.read_text())
    print(f"service ready on {url} after {time.monotonic() - begun:.1f} s; POST /studies with {describe(config)}")
    submitted = time.monotonic()
    study = call(f"{url}/studies", config)
    study = follow(url, study, stack)
    took = time.monotonic() - submitted
    if study["status"] != "succeeded":
        print(f"study {study['status']}: {json.dumps(study.get('problem'), indent=2)}")
        return 1
    ranked = call(f"{url}/studies/{study['id']}/candidates?limit={ROWS_SHOWN}")["items"]
    if not ranked:
        print("the study succeeded without a candidate")
        return 1
    print(table([row_of(candidate) for candidate in ranked]))
    print(winner_line(ranked))
    done = study["progress"]["done"]
    print(f"{done} trials in {took:.2f} s; {time.monotonic() - begun:.1f} s since the command was typed")
    print(things_to_try())
    return 0


def describe(config: Json) -> str:
    """The example in a few words."""
    space, load = config["search_space"], config["workload"]
    return (
        f"{space['model_name']} on {space['hardware_sku']}, {space['gpu_budget']} GPUs, "
        f"isl {load['isl']}, osl {load['osl']}, concurrency {load['concurrency']}"
    )


def follow(url: str, study: Json, stack: Stack) -> Json:
    """Long-poll until the study ends, a line for each change. Raises: LaunchError when late, or when a part dies."""
    began, within_s, said = time.monotonic(), WORKER_WITHIN_S, ""
    while study["status"] not in TERMINAL:
        stack.require_alive()
        if time.monotonic() - began > within_s:
            raise LaunchError(f"the study was still {study['status']} after {within_s:.0f} s{tails(stack)}")
        earlier = study["status"]
        study = call(f"{url}/studies/{study['id']}?wait={POLL_WAIT_S}&version={study['version']}")
        if earlier == "queued" != study["status"]:
            began, within_s = time.monotonic(), STUDY_WITHIN_S
        if line_of(study) != said:
            print(line_of(study), flush=True)
        said = line_of(study)
    stack.require_alive()
    return study


def line_of(study: Json) -> str:
    """How far a study is."""
    if study["status"] == "queued":
        return (
            "  queued     until a worker is ready; the first one here compiles the replay kernel, for a minute or two"
        )
    return f"  {study['status']:<10} {study['progress']['done']} of {study['progress']['trials_total']} trials"


def call(url: str, body: Json | None = None) -> Json:
    """GET, or POST a JSON body; the JSON answer. Raises: LaunchError with the service's own words for a refusal."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with DIRECT.open(request, timeout=POLL_WAIT_S + 25) as response:
            answer: Json = json.load(response)
            return answer
    except urllib.error.HTTPError as refusal:
        raise LaunchError(f"{request.get_method()} {url}: {refusal.code} {refusal.read().decode()}") from None
    except (OSError, ValueError) as fault:
        raise LaunchError(f"{request.get_method()} {url}: {fault}") from None


def row_of(candidate: Json) -> dict[str, str]:
    """One candidate as the columns of the table."""
    deployment, metrics = candidate["deployment"], candidate["metrics"]
    pools = [(role, deployment[role]) for role in ("agg", "prefill", "decode") if deployment.get(role)]
    return {
        "rank": str(candidate["rank"]),
        "deployment": f"{deployment['backend']} " + " + ".join(f"{role} {shape_of(pool)}" for role, pool in pools),
        "GPUs": str(candidate["used_gpus"]),
        "batch tokens": "/".join(str(pool["max_num_batched_tokens"]) for _, pool in pools),
        "batch seqs": "/".join(str(pool["max_num_seqs"]) for _, pool in pools),
        **{objective: number(value) for objective, value in candidate["objectives"].items()},
        "tok/s": number(metrics.get("output_throughput_tok_s")),
        "mean TTFT ms": number(metrics.get("mean_ttft_ms")),
        "mean TPOT ms": number(metrics.get("mean_tpot_ms")),
    }


def winner_line(ranked: list[Json]) -> str:
    """What won, and by how much over the first candidate with another outcome."""
    first, row = ranked[0], row_of(ranked[0])
    words = f"the winner: {row['deployment']} on {row['GPUs']} GPU{'' if first['used_gpus'] == 1 else 's'}"
    ties = [each for each in ranked if each["score"] == first["score"]]
    if len(ties) < len(ranked):
        other = ranked[len(ties)]
        lead = abs(first["score"] / other["score"] - 1) if other["score"] else 0.0
        words += f", {lead:.1%} better than {row_of(other)['deployment']} of rank {other['rank']}"
    return words + (f"; {len(ties) - 1} more end alike, ties go to the simplest" if len(ties) > 1 else "")


def shape_of(pool: Json) -> str:
    """Replicas and parallel widths, e.g. "4x tp2"; widths of one are left out."""
    widths = [f"{name}{width}" for name, width in pool["shape"].items() if width > 1]
    return f"{pool['replicas']}x {'.'.join(widths) or 'tp1'}"


def number(value: float | None) -> str:
    """One decimal, or a dash for a metric without a sample."""
    return "-" if value is None else f"{value:,.1f}"


def table(rows: list[dict[str, str]]) -> str:
    """Rows with the same keys as aligned text; the deployment column is left-aligned, the rest right-aligned."""
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    lines = [{name: name for name in widths}, *rows]
    return "\n".join(
        "  ".join(f"{line[name]:{'<' if name == 'deployment' else '>'}{width}}" for name, width in widths.items())
        for line in lines
    )


def tails(stack: Stack) -> str:
    """The last log lines of our own processes."""
    return "".join(child.log_tail() for child in stack.children if child.program.name in ("api", "worker"))


def things_to_try() -> str:
    """The dashboard and three commands, for a service that `run.py serve` keeps up."""
    url, example = "http://127.0.0.1:8000", EXAMPLE.relative_to(REPOSITORY)
    return "\n".join(
        (
            "to try it yourself, keep one up with `python3 run.py serve`, then:",
            f"  curl -s '{url}/studies?wait=60' -H 'Content-Type: application/json' -d @{example}",
            f"  curl -s '{url}/studies?limit=5'",
            f"  curl -s {url}/studies/ID/candidates -H 'Accept: text/csv'",
            f"or open {url}/ in a browser",
        )
    )
