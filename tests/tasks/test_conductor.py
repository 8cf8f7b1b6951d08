"""Whole studies through the conductor, with broker and worker played in this process."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from app.db.engine import transaction
from app.db.lifecycle import lock_study, request_cancel
from app.schemas.status import TRIAL_TERMINAL
from tests import pure_fake
from tests.thin import Desk, candidates, execute, results, study, submit, trials
from workers import ledger
from workers.conductor import advance
from workers.errors import SamplerError
from workers.search.history import Proposal, Told

pytestmark = pytest.mark.services


def test_study_of_one_round_succeeds_with_every_trial_ended(desk: Desk) -> None:
    row = desk.run(submit(trials=40))
    assert row.status == "succeeded"
    assert (row.num_trials, row.num_feasible, row.num_infeasible) == (40, 32, 8)
    assert row.coverage == {"evaluated": 40, "bounded_out": 0, "skipped": 0, "total": 40, "exhaustive": True}
    assert row.provenance["perf_data"] == {"package": "fake", "version": "1"}
    assert {trial.status for trial in trials(row.id)} <= set(TRIAL_TERMINAL)


def test_counters_equal_the_trial_rows(desk: Desk) -> None:
    row = desk.run(submit(trials=40, fail=7, round=9, repeat=2))
    counts = Counter(trial.status for trial in trials(row.id))
    assert counts == {"feasible": row.num_feasible, "infeasible": row.num_infeasible, "failed": row.num_failed}
    assert row.num_trials == sum(counts.values())
    assert row.num_cached == sum(trial.cache_hit for trial in trials(row.id))


def test_version_rises_with_every_step(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    versions: list[int] = []
    for module in ("conductor", "persist"):
        monkeypatch.setattr(f"workers.{module}.announce", lambda _study_id, version: versions.append(version))
    row = desk.run(submit(trials=40, round=10))
    assert versions == sorted(set(versions))
    assert versions[-1] == row.version


def test_ranking_puts_larger_scores_first_then_fewer_gpus(desk: Desk) -> None:
    rows = candidates(desk.run(submit(trials=40)).id)
    assert [row.rank for row in rows] == list(range(1, 33))
    assert [row.place for row in rows] == list(range(1, 33))
    keys = [(-row.score, row.used_gpus) for row in rows]
    assert keys == sorted(keys)
    assert [row.on_front for row in rows] == [True] + [False] * 31


def test_ranking_that_moves_nobody_keeps_the_ranked_version(desk: Desk) -> None:
    row = desk.run(submit(trials=20))
    with transaction() as db:
        locked = lock_study(db, row.id)
        assert locked is not None
        ledger.write_ranking(db, locked, ledger.results_so_far(db, locked))
    again = study(row.id)
    assert (again.version, again.ranked_version) == (row.version + 1, row.ranked_version)


def test_leaders_of_an_ended_study_say_how_firm_they_stand(desk: Desk) -> None:
    study = desk.run(submit(trials=20))
    checked = [row.rank for row in candidates(study.id) if row.stability is not None]
    assert sorted(rank or 0 for rank in checked) == [1, 2, 3, 4, 5]
    assert {"pointer": "/workload", "detail": "planted"} in study.warnings


def test_pareto_goal_ranks_the_front_along_its_last_objective(desk: Desk) -> None:
    row = desk.run(submit(trials=60, goal={"target": "pareto"}))
    rows = candidates(row.id)
    front = [each for each in rows if each.on_front]
    assert [each.rank for each in front] == list(range(1, len(front) + 1))
    assert [each.objectives[-1] for each in front] == sorted(each.objectives[-1] for each in front)
    for each in rows:
        beaten = any(
            all(a >= b for a, b in zip(other.objectives, each.objectives, strict=True))
            and other.objectives != each.objectives
            for other in rows
        )
        assert each.on_front is not beaten
        assert (each.rank is not None) is each.on_front
    assert row.best is not None
    assert row.best["front_size"] == len(front)


def test_result_is_the_same_for_any_chunk_size(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    first = desk.run(submit(trials=50, round=20, fail=11, sweep={"parallel_evals": 1}))
    monkeypatch.setattr("workers.dispatch.chunk_size", lambda *_: 1)
    second = desk.run(submit(trials=50, round=20, fail=11, sweep={"parallel_evals": 7}))
    assert results(first.id) == results(second.id)


def test_every_message_twice_and_every_tenth_lost_gives_the_same_result(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = desk.run(submit(trials=60, round=15))
    monkeypatch.setattr("workers.dispatch.chunk_size", lambda *_: 4)
    seen = 0

    def storm(name: str, arguments: list[object]) -> bool:
        nonlocal seen
        seen += 1
        if seen % 10 == 0:
            execute("UPDATE studies SET updated_at = now() - interval '1 h', woken_at = now() - interval '1 h'")
            execute(
                "UPDATE trials SET sent_at = now() - interval '1 h' WHERE status = 'queued' AND sent_at IS NOT NULL"
            )
            return False
        if seen % 3 == 0 and len(desk.messages) < 200:
            desk.messages.append((name, arguments))
        return True

    from workers.rescue import sweep

    study_id = submit(trials=60, round=15)
    desk.messages.append(("spica.advance_study", [str(study_id)]))
    for _ in range(50):
        desk.work(storm)
        if study(study_id).status == "succeeded":
            break
        sweep()
    assert study(study_id).status == "succeeded"
    assert results(study_id) == results(calm.id)


def test_messages_under_way_never_exceed_parallel_evals(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.dispatch.chunk_size", lambda *_: 2)
    most = 0

    def count(_name: str, _arguments: list[object]) -> bool:
        nonlocal most
        most = max(most, sum(name == "spica.run_trials" for name, _ in desk.messages))
        return True

    study_id = submit(trials=40, sweep={"parallel_evals": 3})
    desk.messages.append(("spica.advance_study", [str(study_id)]))
    desk.work(count)
    assert study(study_id).status == "succeeded"
    assert most == 3


def test_proposal_seen_before_is_born_ended_as_a_cache_hit(desk: Desk) -> None:
    row = desk.run(submit(trials=20, round=12, repeat=3))
    hits = [trial for trial in trials(row.id) if trial.cache_hit]
    assert [trial.number for trial in hits] == [12, 13, 14]
    originals = {trial.deployment_sha256: trial for trial in trials(row.id) if not trial.cache_hit}
    for hit in hits:
        twin = originals[hit.deployment_sha256]
        assert (hit.status, hit.score, hit.candidate_id) == (twin.status, twin.score, twin.candidate_id)
    assert len(candidates(row.id)) == len({row.deployment_sha256 for row in candidates(row.id)})


def test_what_an_optimizer_asked_for_is_kept_with_the_trial_and_told_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[list[object]] = []
    ask = pure_fake.Search.ask

    def listening(self: pure_fake.Search, history: Sequence[Told], n: int, stop: Callable[[], bool]) -> list[Proposal]:
        heard.append([told.suggestion for told in history])
        return ask(self, history, n, stop)

    monkeypatch.setattr(pure_fake.Search, "ask", listening)
    row = desk.run(submit(trials=20, round=12, repeat=3))
    kept = [trial.suggestion for trial in trials(row.id)]
    assert heard == [[], kept[:12], kept]
    assert [each["asked"] for each in kept if each] == 12 * [0] + (3 + 8) * [12]


def test_a_study_whose_optimizer_fails_ends_with_its_words(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[Proposal]:
        raise SamplerError("it is not there")

    monkeypatch.setattr(pure_fake.Search, "ask", broken)
    row = desk.run(submit(trials=20))
    assert row.status == "failed"
    assert row.problem is not None
    assert row.problem["type"] == "urn:spica:problem:sampler-failed"
    assert row.problem["detail"] == "it is not there"


def test_only_one_process_asks_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    num_asked, ask = 0, pure_fake.Search.ask

    def counted(self: pure_fake.Search, history: Sequence[Told], n: int, stop: Callable[[], bool]) -> list[Proposal]:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 1:
            advance(study_id)
        return ask(self, history, n, stop)

    monkeypatch.setattr(pure_fake.Search, "ask", counted)
    study_id = submit(trials=5)
    assert desk.run(study_id).status == "succeeded"
    assert num_asked == 2


def test_ten_equal_failures_in_a_row_end_the_study(desk: Desk) -> None:
    row = desk.run(submit(trials=30, fail=1, sweep={"parallel_evals": 1}))
    assert row.status == "failed"
    assert row.problem is not None
    assert row.problem["type"] == "urn:spica:problem:trials-keep-failing"
    assert row.problem["code"] == "replay_error"


def test_study_without_any_feasible_trial_fails_and_counts_the_reasons(desk: Desk) -> None:
    row = desk.run(submit(trials=6, infeasible=1))
    assert row.status == "failed"
    assert row.problem is not None
    assert row.problem["type"] == "urn:spica:problem:no-viable-candidate"
    assert row.problem["reasons"] == [{"code": "no_kv_budget", "count": 6, "example": "no room"}]


def test_plan_with_nothing_to_search_fails_the_study_with_its_problem(desk: Desk) -> None:
    row = desk.run(submit(trials=0))
    assert (row.status, row.num_trials) == ("failed", 0)
    assert row.problem is not None
    assert row.problem["type"] == "urn:spica:problem:planted"
    assert row.plan is not None


def test_planning_that_breaks_fails_the_study_without_internals(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("/secret/path")

    monkeypatch.setattr("workers.conductor.make_plan", broken)
    row = desk.run(submit(trials=3))
    assert row.status == "failed"
    assert row.problem is not None
    assert "secret" not in str(row.problem)


def test_trial_limit_of_the_service_ends_the_search(desk: Desk, setting: Callable[[str, object], None]) -> None:
    setting("max_trials", 25)
    row = desk.run(submit(trials=100, round=10))
    assert (row.status, row.num_trials) == ("succeeded", 25)


def test_cancel_keeps_what_was_found_and_ranks_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.dispatch.chunk_size", lambda *_: 5)
    study_id = submit(trials=40)
    advance(study_id)
    desk.messages[:] = desk.messages[:1]
    monkeypatch.setattr("workers.tasks.wake_study", lambda _study_id: True)
    desk.work()
    with transaction() as db:
        request_cancel(db, study_id)
    row = desk.run(study_id)
    assert (row.status, row.num_feasible, row.num_cancelled) == ("cancelled", 4, 35)
    assert [each.rank for each in candidates(study_id)] == [1, 2, 3, 4]


def test_same_configuration_gives_the_same_result_twice(desk: Desk) -> None:
    first, second = desk.run(submit(trials=30)), desk.run(submit(trials=30))
    assert first.id != second.id
    assert results(first.id) == results(second.id)


def test_undefined_objective_makes_a_trial_infeasible(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pure_fake.evaluate_many

    def without_numbers(*arguments: object) -> object:
        from dataclasses import replace

        for verdict in whole(*arguments):  # type: ignore[arg-type]
            is_feasible = verdict.status == "feasible"
            yield replace(verdict, score=float("nan"), objectives=(float("nan"),)) if is_feasible else verdict

    monkeypatch.setattr("workers.chunk.evaluate_many", without_numbers)
    row = desk.run(submit(trials=5))
    assert row.status == "failed"
    assert {trial.reason_code for trial in trials(row.id)} == {"objective_undefined", "no_kv_budget"}
