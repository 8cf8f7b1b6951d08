"""The commands of the tutorial and the steps of the CI examples do what the pages say, on a running service."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import REPOSITORY

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
DOCS = REPOSITORY / "docs"
CURL_HTTP_ERROR = 22
Pipeline = Callable[[Path, dict[str, str], str, str, str], subprocess.CompletedProcess[str]]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def run(script: str, folder: Path, environment: dict[str, str], *shell: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shell, script], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_every_command_of_the_tutorial_succeeds(environment: dict[str, str], tmp_path: Path) -> None:
    script = "set -euo pipefail\n" + "".join(blocks("tutorial.md", "sh"))
    done = run(script, tmp_path, environment, "bash", "-c")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "vllm serve Qwen/Qwen3-32B-FP8" in done.stdout
    assert (tmp_path / "all.csv").read_text().startswith("id,study_id,trial,rank")


def study_file(folder: Path, concurrency: int) -> None:
    document = json.loads((REPOSITORY / "openapi" / "examples" / "concurrency.json").read_text())
    document["search_space"]["gpu_budget"] = 2
    document["workload"] = {"isl": 256, "osl": 16, "concurrency": concurrency, "num_request_ratio": 2}
    (folder / "study.json").write_text(json.dumps(document))


def github(
    folder: Path, environment: dict[str, str], project: str, branch: str, run_id: str
) -> subprocess.CompletedProcess[str]:
    """The job's steps as a GitHub runner runs them: each in a shell of its own, until one fails."""
    job = yaml.safe_load(blocks("ci.md", "yaml")[0])["jobs"]["gate"]
    written = folder / "github.env"
    written.write_text("")
    known = {name: value for name, value in job["env"].items() if "${{" not in value}
    known |= {"GITHUB_ENV": str(written), "GITHUB_REPOSITORY": project, "GITHUB_RUN_ID": run_id, "BRANCH": branch}
    done = None
    for step in job["steps"]:
        if "run" not in step:
            continue
        lines = dict(line.split("=", 1) for line in written.read_text().splitlines())
        done = run(step["run"], folder, environment | known | {"GITHUB_SHA": "f00d"} | lines, "bash", "-e", "-c")
        if done.returncode != 0:
            return done
    assert done is not None
    return done


def gitlab(
    folder: Path, environment: dict[str, str], project: str, branch: str, run_id: str
) -> subprocess.CompletedProcess[str]:
    """The job's script as a GitLab runner runs it: one shell for all lines."""
    job = yaml.safe_load(blocks("ci.md", "yaml")[1])["serving-regression"]
    known = {
        "CI_PROJECT_PATH": project,
        "CI_PIPELINE_ID": run_id,
        "CI_COMMIT_REF_NAME": branch,
        "CI_COMMIT_SHA": "f00d",
    }
    script = "\n".join([*job["before_script"], *job["script"]])
    return run(script, folder, environment | job["variables"] | known, "sh", "-e", "-c")


@pytest.fixture(params=[github, gitlab], ids=["github", "gitlab"])
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    chosen: Pipeline = request.param
    return chosen


def study_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "study.out.json").read_text())
    return document


def test_gate_passes_equals_and_fails_on_a_regression(
    pipeline: Pipeline, environment: dict[str, str], tmp_path: Path
) -> None:
    study_file(tmp_path, concurrency=8)
    first = pipeline(tmp_path, environment, "team/serving", "main", f"{pipeline.__name__}-1")
    assert first.returncode == 0, first.stderr
    assert study_of(tmp_path)["labels"] == {"branch": "main", "commit": "f00d"}
    same = pipeline(tmp_path, environment, "team/serving", "feature", f"{pipeline.__name__}-2")
    assert same.returncode == 0, same.stdout + same.stderr
    assert "throughput_per_gpu: " in same.stdout
    study_file(tmp_path, concurrency=1)
    worse = pipeline(tmp_path, environment, "team/serving", "feature", f"{pipeline.__name__}-3")
    assert worse.returncode == CURL_HTTP_ERROR, worse.stdout + worse.stderr
    assert "Worse than the baseline by more than 0.02: throughput_per_gpu" in worse.stdout


def test_job_that_is_run_again_finds_its_study(pipeline: Pipeline, environment: dict[str, str], tmp_path: Path) -> None:
    study_file(tmp_path, concurrency=8)
    ids = set()
    for _ in range(2):
        assert pipeline(tmp_path, environment, "team/again", "topic", pipeline.__name__).returncode == 0
        ids.add(study_of(tmp_path)["id"])
    assert len(ids) == 1


def test_job_with_a_faulty_configuration_fails_and_shows_the_faults(
    pipeline: Pipeline, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "study.json").write_text('{"workload": {}}')
    done = pipeline(tmp_path, environment, "team/faulty", "topic", pipeline.__name__)
    assert done.returncode != 0
    assert "/search_space" in done.stdout


def test_job_whose_study_fails_fails(pipeline: Pipeline, environment: dict[str, str], tmp_path: Path) -> None:
    study_file(tmp_path, concurrency=8)
    document = json.loads((tmp_path / "study.json").read_text())
    document["search_space"] |= {"model_name": "deepseek-ai/DeepSeek-V3", "gpu_budget": 1}
    (tmp_path / "study.json").write_text(json.dumps(document))
    done = pipeline(tmp_path, environment, "team/too-big", "topic", pipeline.__name__)
    assert done.returncode != 0
    assert "no-viable-candidate" in done.stdout


def test_examples_use_no_other_program_than_curl_and_jq() -> None:
    text = "\n".join(blocks("ci.md", "yaml"))
    assert text.count("Idempotency-Key") == 2
    assert not re.search(r"(^|[|;&(\s-])(python3?|pip|spica|wget|node|yq) ", text)
