"""The bandit's parameters, its questions, and what becomes of its answers; a stand-in plays the optimizer's process."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.extras import VIZIER_SETTING, vizier_python
from app.schemas.status import ReasonCode, TrialStatus
from app.schemas.study import SmartSearchConfig
from tests.unit.search.world import WorldFacts, config_of, judge, search_of
from workers.errors import SamplerError, StoppedError
from workers.search.bandit import Bandit
from workers.search.history import Proposal, Told
from workers.search.parameters import Parameters
from workers.search.space import build_space

STAND_IN = """#!{python}
import json, random, sys, time
question = json.load(sys.stdin)
open({asked!r}, "a").write(json.dumps(question) + chr(10))
draw = random.Random(question["seed"])
def value(p):
    return draw.choice(p["values"]) if "values" in p else draw.uniform(p["low"], p["high"])
{body}
"""
ANSWER = """print(json.dumps(dict(suggestions=[
    {p["name"]: value(p) for p in question["parameters"]} for _ in range(question["count"])])))"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str = ANSWER) -> Path:
    """An environment whose interpreter answers by itself; the file that keeps the questions."""
    for name in ("vizier", "jax"):
        (folder / "lib" / "python3.11" / "site-packages" / name).mkdir(parents=True)
    python, asked = folder / "bin" / "python", folder / "asked"
    python.parent.mkdir()
    python.write_text(STAND_IN.format(python=sys.executable, asked=str(asked), body=body))
    python.chmod(0o755)
    monkeypatch.setenv(VIZIER_SETTING, str(python))
    return asked


def vizier(**blocks: Any) -> SmartSearchConfig:
    return config_of(sweep={"algorithm": "vizier", "max_rounds": 2, "candidates_per_round": 4}, **blocks)


def parameters_of(**blocks: Any) -> Parameters:
    config = config_of(**blocks)
    return Parameters(build_space(config, WorldFacts()), 0, is_moe=False)


def run(config: SmartSearchConfig, limit: int = 200) -> list[Told]:
    search, history, numbers = search_of(config), list[Told](), dict[str, Told]()
    while len(history) < limit and (proposals := search.ask(history, 512)):
        for each in proposals:
            known = numbers.get(each.deployment.model_dump_json())
            history.append(told(config, each, len(history), known))
            numbers.setdefault(each.deployment.model_dump_json(), history[-1])
    return history


def told(config: SmartSearchConfig, each: Proposal, number: int, known: Told | None = None) -> Told:
    own = judge(config, each.deployment, number)
    return Told(
        number,
        each.deployment,
        own.status,
        own.reason,
        own.score,
        own.objectives,
        0,
        known is not None,
        each.suggestion,
    )


def test_parameters_are_latent_and_knobs_with_a_choice() -> None:
    found = {each["name"]: each for each in parameters_of(search_space={"backend": ["vllm", "sglang"]}).described()}
    assert sorted(found) == [
        "agg_max_num_batched_tokens",
        "agg_max_num_seqs",
        "agg_num_gpus_per_engine_target",
        "backend",
        "used_gpu_ratio",
    ]
    assert found["agg_num_gpus_per_engine_target"]["log"]
    assert found["agg_num_gpus_per_engine_target"]["default"] == 4
    assert (found["used_gpu_ratio"]["low"], found["used_gpu_ratio"]["high"]) == (0.125, 1.0)
    assert found["backend"]["values"] == ["vllm", "sglang"]


@pytest.mark.parametrize(
    ("wish", "tp", "replicas"),
    [({}, 4, 2), ({"used_gpu_ratio": 0.6, "agg_num_gpus_per_engine_target": 4.0}, 4, 1)],
    ids=["defaults", "off-grid"],
)
def test_a_wish_becomes_the_nearest_candidate(wish: dict[str, float | str], tp: int, replicas: int) -> None:
    space = build_space(config_of(), WorldFacts())
    place = Parameters(space, 0, is_moe=False).place({**wish, "agg_max_num_seqs": 512.0})
    agg = space.deployment(0, place.number).agg
    assert agg is not None
    assert (agg.shape.tp, agg.replicas, agg.max_num_batched_tokens, agg.max_num_seqs) == (tp, replicas, 8192, 512)


def test_a_round_robin_wish_keeps_no_weights_and_a_routed_one_does() -> None:
    space = build_space(config_of(search_space={"router_mode": ["kv_router", "round_robin"]}), WorldFacts())
    parameters = Parameters(space, 0, is_moe=False)
    weights: dict[str, float | str] = {
        "overlap_score_credit": 0.5,
        "prefill_load_scale": 2.0,
        "router_temperature": 0.2,
    }
    routed = space.deployment(0, parameters.place({**weights, "router_mode": "kv_router"}).number).router
    assert (routed.overlap_score_credit, routed.prefill_load_scale, routed.temperature) == (0.5, 2.0, 0.2)
    plain = space.deployment(0, parameters.place({**weights, "router_mode": "round_robin"}).number).router
    assert plain.overlap_score_credit is None


def test_a_range_of_kv_loads_is_a_float_with_its_middle_as_default() -> None:
    blocks: dict[str, Any] = {
        "workload": {"concurrency": None, "kv_load_ratio": [0.2, 1.0]},
        "goal": {"target": "pareto"},
    }
    parameters = parameters_of(**blocks)
    (load,) = [each for each in parameters.described() if each["name"] == "kv_load_ratio"]
    assert (load["kind"], load["low"], load["high"], load["default"]) == ("float", 0.2, 1.0, 0.6)
    assert parameters.place({"kv_load_ratio": 0.37}).ratio == 0.37


def test_a_study_is_asked_round_by_round_until_its_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = install(tmp_path, monkeypatch)
    history = run(vizier())
    questions = [json.loads(line) for line in asked.read_text().splitlines()]
    assert sum(not each.cache_hit and each.status == TrialStatus.FEASIBLE for each in history) == 8
    assert [len(each["trials"]) for each in questions[:2]] == [0, 4]
    assert len({each["seed"] for each in questions}) == len(questions)


def test_a_resumed_study_gets_the_same_suggestions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    config = vizier()
    history = run(config)
    for cut in (0, 4):
        again = search_of(config).ask(history[:cut], 512)
        assert [each.suggestion for each in again] == [each.suggestion for each in history[cut : cut + len(again)]]


def test_trials_without_result_are_told_as_infeasible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = install(tmp_path, monkeypatch)
    config = vizier(goal={"target": "e2e_latency"})
    first = search_of(config).ask([], 512)
    history = [
        told(config, first[0], 0),
        Told(1, first[1].deployment, TrialStatus.FAILED, suggestion=first[1].suggestion),
        Told(2, first[2].deployment, TrialStatus.INFEASIBLE, ReasonCode.NO_KV_BUDGET, suggestion=first[2].suggestion),
    ]
    search_of(config).ask(history, 512)
    trials = json.loads(asked.read_text().splitlines()[-1])["trials"]
    assert [each["gains"] is None for each in trials] == [False, True, True]
    assert trials[0]["gains"] == [-history[0].objectives[0]]
    assert [each["values"] for each in trials] == [each.suggestion for each in history]


def test_a_space_smaller_than_the_budget_ends_when_everything_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch)
    menu = {"parallel_configs": [{"tp": 4}], "agg_max_num_seqs": [256], "agg_max_num_batched_tokens": [8192]}
    history = run(vizier(search_space=menu))
    assert len(history) == 1


def test_a_missing_extra_is_an_error_of_the_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VIZIER_SETTING, str(tmp_path / "bin" / "python"))
    assert vizier_python() is None
    with pytest.raises(SamplerError, match="not installed"):
        search_of(vizier()).ask([], 4)


def test_a_process_that_dies_is_an_error_of_the_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, body="sys.exit('no such luck')")
    with pytest.raises(SamplerError, match="no such luck"):
        search_of(vizier()).ask([], 4)


def test_a_bandit_that_thinks_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, body="time.sleep(60)")
    config = vizier()
    bandit = Bandit(build_space(config, WorldFacts()), 0, is_moe=False)
    with pytest.raises(StoppedError):
        bandit.ask([], 1, 42, lambda: True)
