"""The command line against a running service: every command, and every exit code that a service can cause."""

import csv
import io
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
EXAMPLE = REPOSITORY / "openapi" / "examples" / "concurrency.json"
SMALL = {"isl": 256, "osl": 16, "concurrency": 4, "num_request_ratio": 2}


def spica(environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["spica", *map(str, words)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def _small(folder: Path, **workload: object) -> Path:
    """The main example with next to no traffic."""
    document = json.loads(EXAMPLE.read_text())
    document["workload"] = {**SMALL, **workload}
    document["search_space"]["gpu_budget"] = 2
    path = folder / f"small-{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def ended(environment: dict[str, str], tmp_path: Path) -> str:
    """Id of a small study that has succeeded."""
    done = spica(environment, "submit", _small(tmp_path), "--wait", "--idempotency-key", "the-small-one")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_submit_prints_the_id_alone_and_shows_progress_aside(environment: dict[str, str], tmp_path: Path) -> None:
    done = spica(environment, "submit", _small(tmp_path), "--wait")
    assert (done.returncode, len(done.stdout.split())) == (0, 1)
    last = done.stderr.splitlines()[-1]
    assert "succeeded" in last
    assert "100%" in last
    assert "best" in last


def test_submit_takes_yaml_as_well(environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(json.loads(_small(tmp_path).read_text())))
    assert spica(environment, "submit", path).returncode == 0


def test_trace_is_sent_along_and_replayed(environment: dict[str, str], tmp_path: Path) -> None:
    rows = [{"timestamp": 50 * number, "input_length": 300, "output_length": 8} for number in range(12)]
    trace = tmp_path / "rows.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "study.json"
    document = json.loads(_small(tmp_path).read_text())
    path.write_text(json.dumps(document | {"workload": {"trace_path": "beside"}}))
    done = spica(environment, "submit", path, "--trace", trace, "--wait")
    assert done.returncode == 0, done.stderr
    study = json.loads(spica(environment, "show", done.stdout.strip(), "--json").stdout)
    assert study["provenance"]["trace_sha256"]


def test_same_key_and_file_give_the_same_study(environment: dict[str, str], tmp_path: Path, ended: str) -> None:
    again = spica(environment, "submit", _small(tmp_path), "--idempotency-key", "the-small-one")
    assert again.stdout.strip() == ended


def test_dry_run_prints_the_plan(environment: dict[str, str], tmp_path: Path) -> None:
    done = spica(environment, "submit", _small(tmp_path), "--dry-run")
    assert done.returncode == 0
    assert json.loads(done.stdout)["combinations"] > 0


def test_watch_of_an_ended_study_returns_at_once(environment: dict[str, str], ended: str) -> None:
    done = spica(environment, "watch", ended)
    assert (done.returncode, done.stdout) == (0, "")
    assert "succeeded" in done.stderr


def test_show_gives_a_summary_and_the_first_candidates(environment: dict[str, str], ended: str) -> None:
    done = spica(environment, "show", ended, "--limit", 2)
    assert ended in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[-3:]] == ["rank", "1", "2"]
    assert json.loads(spica(environment, "show", ended, "--json").stdout)["id"] == ended


def test_candidates_as_csv_have_every_column_and_row(environment: dict[str, str], ended: str) -> None:
    rows = list(csv.DictReader(io.StringIO(spica(environment, "candidates", ended, "--csv").stdout)))
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(1, len(rows) + 1)]
    assert float(rows[0]["metrics.output_throughput_tok_s"]) > 0


def test_deployment_of_the_best_candidate_is_the_default(environment: dict[str, str], ended: str) -> None:
    done = spica(environment, "deployment", ended)
    assert yaml.safe_load(done.stdout)["kind"] == "DynamoGraphDeployment"
    assert "vllm serve" in spica(environment, "deployment", ended, "--format", "vllm").stdout


def test_deployment_in_another_engines_format_is_refused(environment: dict[str, str], ended: str) -> None:
    done = spica(environment, "deployment", ended, "--format", "trtllm")
    assert (done.returncode, done.stdout) == (4, "")
    assert "use dynamo or vllm" in done.stderr


def test_score_below_the_wanted_one_is_exit_code_1(environment: dict[str, str], tmp_path: Path) -> None:
    path = _small(tmp_path)
    assert spica(environment, "submit", path, "--fail-below", 0.001).returncode == 0
    done = spica(environment, "submit", path, "--fail-below", 1e9)
    assert done.returncode == 1
    assert "below 1e+09" in done.stderr


def test_regression_against_a_baseline_is_exit_code_1(environment: dict[str, str], tmp_path: Path, ended: str) -> None:
    assert spica(environment, "submit", _small(tmp_path), "--baseline", ended).returncode == 0
    slower = _small(tmp_path, concurrency=1)
    done = spica(environment, "submit", slower, "--baseline", ended, "--tolerance", 0.02)
    assert done.returncode == 1
    assert "Worse than the baseline" in done.stderr
    assert spica(environment, "submit", slower, "--baseline", ended, "--tolerance", 1).returncode == 0


def test_study_that_fails_is_exit_code_1_with_the_reason(environment: dict[str, str], tmp_path: Path) -> None:
    document = json.loads(_small(tmp_path).read_text())
    document["search_space"] |= {"model_name": "deepseek-ai/DeepSeek-V3", "gpu_budget": 1}
    path = tmp_path / "too-big.json"
    path.write_text(json.dumps(document))
    done = spica(environment, "submit", path, "--wait")
    assert done.returncode == 1
    assert "failed: " in done.stderr


def test_faulty_configuration_is_exit_code_4_with_every_fault(environment: dict[str, str]) -> None:
    done = spica(environment, "submit", REPOSITORY / "openapi" / "examples" / "fault-unknown-hardware.json")
    assert done.returncode == 4
    assert "/search_space/hardware_sku" in done.stderr


def test_unknown_study_is_exit_code_4(environment: dict[str, str]) -> None:
    assert spica(environment, "show", "0198c0de-0000-7000-8000-000000000001").returncode == 4


def test_cancelled_study_is_exit_code_1_for_who_watches(environment: dict[str, str], tmp_path: Path) -> None:
    document = json.loads(EXAMPLE.read_text())
    document["search_space"] |= {"gpu_budget": 32, "deployment_mode": ["disagg", "agg"]}
    document["workload"] |= {"num_request_ratio": 200}
    path = tmp_path / "long.json"
    path.write_text(json.dumps(document))
    study_id = spica(environment, "submit", path).stdout.strip()
    assert spica(environment, "watch", study_id, "--timeout", 0).returncode == 5
    assert spica(environment, "cancel", study_id).returncode == 0
    done = spica(environment, "watch", study_id)
    assert done.returncode == 1
    assert "cancelled" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["submit", "nowhere.json"], ["submit", "README.md"], ["show", "not-an-id"], ["frobnicate"], []],
    ids=lambda words: " ".join(words) or "nothing",
)
def test_wrong_command_line_is_exit_code_2(environment: dict[str, str], words: list[str]) -> None:
    assert spica(environment, *words).returncode == 2


@pytest.mark.parametrize(("url", "code"), [("http://127.0.0.1:9", 3), ("nonsense", 2)])
def test_address_without_a_service_is_told_apart_from_one_that_is_none(
    environment: dict[str, str], url: str, code: int
) -> None:
    done = spica(environment | {"SPICA_URL": url}, "show", "0198c0de-0000-7000-8000-000000000001")
    assert (done.returncode, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
