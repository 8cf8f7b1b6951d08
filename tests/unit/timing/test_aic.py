"""Step times of the measured operators: known values, memory, disk, and refusals."""

from pathlib import Path

import numpy as np
import pytest

from app.schemas.deployment import ParallelShape
from app.schemas.status import ReasonCode
from workers.errors import UnsupportedError
from workers.timing import disk_cache, perf_data
from workers.timing.aic import AicTimes, EngineIdentity, aic_times, engine_identity, has_times

MODEL, HARDWARE = "Qwen/Qwen3-32B-FP8", "h200_sxm"


@pytest.fixture
def identity() -> EngineIdentity:
    return engine_identity(MODEL, HARDWARE, "vllm", ParallelShape(tp=2))


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(disk_cache.SETTING, str(tmp_path))
    return tmp_path


def refuse_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: perf_data.PerfDataPackage, name: str = "") -> None:
        raise AssertionError(f"asked for {self.module} {name}")

    monkeypatch.setattr(perf_data.PerfDataPackage, "load", load)
    monkeypatch.setattr("workers.timing.aic._native_engine", lambda _: pytest.fail("built an engine"))


def test_decode_of_one_request_after_a_4000_token_prompt_takes_10_ms(identity: EngineIdentity) -> None:
    assert aic_times(identity).decode_ms(1, 4001, 4001) == 10.046435


def test_prefill_of_one_4000_token_prompt_takes_160_ms(identity: EngineIdentity) -> None:
    assert aic_times(identity).prefill_ms(1, 4000, 0) == 160.164337


def test_prefill_of_a_fully_cached_prompt_takes_no_time(identity: EngineIdentity) -> None:
    assert aic_times(identity).prefill_ms(3, 640, 640) == 0.0


def test_empty_batches_take_no_time(identity: EngineIdentity) -> None:
    times = aic_times(identity)
    assert times.prefill_ms(0, 100, 0) == 0.0
    assert times.decode_ms(0, 0, 0) == 0.0


def test_durations_are_whole_nanoseconds_of_direct_calls(identity: EngineIdentity) -> None:
    from aisimulate_core.sdk.engine import EngineHandle

    direct = EngineHandle.compile(MODEL, HARDWARE, "vllm", backend_version=identity.data_version, tp_size=2)
    times = aic_times(identity)
    for n, context in ((1, 2), (7, 513), (64, 4_321), (256, 20_000)):
        assert times.decode_ns(n, context) == round(direct.predict_decode_latency(n, context - 1, 2) * 1e6)
    for n, isl, prefix in ((1, 17, 0), (3, 2_048, 512), (9, 900, 899)):
        assert times.prefill_ns(n, isl, prefix) == round(direct.predict_prefill_latency(n, isl, prefix) * 1e6)


def test_decode_row_equals_single_questions_in_any_order(identity: EngineIdentity) -> None:
    times = aic_times(identity)
    contexts = np.array([5_000, 1, 128, 127, 129, 5_000], dtype=np.int64)
    row = times.decode_row(12, contexts)
    assert row.dtype == np.int64
    assert row.tolist() == [times.decode_ns(12, context) for context in contexts.tolist()]
    assert times.decode_row(12, contexts[:0]).size == 0


def test_prefill_many_equals_single_questions(identity: EngineIdentity) -> None:
    times = aic_times(identity)
    questions = [(1, 300, 0), (2, 4_096, 64), (1, 300, 0)]
    assert times.prefill_many(questions).tolist() == [times.prefill_ns(*question) for question in questions]


def test_equal_identities_share_one_object(identity: EngineIdentity) -> None:
    again = engine_identity(MODEL, HARDWARE, "vllm", ParallelShape(tp=2), 0)
    assert aic_times(again) is aic_times(identity)
    assert aic_times(identity).key == identity


@pytest.mark.usefixtures("empty_folder")
def test_stored_answers_need_no_package(identity: EngineIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    first = AicTimes(identity)
    known = (first.prefill_ns(2, 1_000, 0), first.decode_row(5, np.arange(100, 400)).tolist())
    first.persist()
    refuse_package(monkeypatch)
    second = AicTimes(identity)
    assert (second.prefill_ns(2, 1_000, 0), second.decode_row(5, np.arange(100, 400)).tolist()) == known


@pytest.mark.usefixtures("empty_folder")
def test_two_writers_keep_what_both_learned(identity: EngineIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = AicTimes(identity), AicTimes(identity)
    learned = [one.decode_ns(3, 70), other.decode_ns(4, 70), other.prefill_ns(1, 50, 0)]
    one.persist()
    other.persist()
    refuse_package(monkeypatch)
    third = AicTimes(identity)
    assert [third.decode_ns(3, 70), third.decode_ns(4, 70), third.prefill_ns(1, 50, 0)] == learned


def test_damaged_answers_are_asked_again(identity: EngineIdentity, empty_folder: Path) -> None:
    first = AicTimes(identity)
    known = first.decode_ns(2, 900)
    first.persist()
    for file in empty_folder.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-3])
    assert AicTimes(identity).decode_ns(2, 900) == known


def test_model_outside_the_package_is_refused_without_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("reached the network"))
    with pytest.raises(UnsupportedError) as caught:
        engine_identity("someone/unknown-7B", HARDWARE, "vllm", ParallelShape(tp=1))
    assert caught.value.code is ReasonCode.NO_PERF_DATA


def test_name_of_a_local_folder_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UnsupportedError):
        engine_identity(str(tmp_path), HARDWARE, "vllm", ParallelShape(tp=1))


def test_hardware_without_data_is_unsupported() -> None:
    with pytest.raises(UnsupportedError) as caught:
        engine_identity(MODEL, "l4", "vllm", ParallelShape(tp=1))
    assert caught.value.code is ReasonCode.NO_PERF_DATA


def test_missing_measurements_are_unsupported_and_hide_machine_paths() -> None:
    times = aic_times(engine_identity("openai/gpt-oss-120b", "a100_sxm", "vllm", ParallelShape(tp=4, moe_tp=4)))
    with pytest.raises(UnsupportedError) as caught:
        times.prefill_ms(1, 1_000, 0)
    assert caught.value.code is ReasonCode.NO_PERF_DATA
    assert "context attention data missing" in caught.value.detail
    assert "site-packages" not in caught.value.detail


def test_heads_that_do_not_divide_cannot_be_run() -> None:
    times = aic_times(engine_identity(MODEL, HARDWARE, "vllm", ParallelShape(tp=3)))
    with pytest.raises(UnsupportedError) as caught:
        times.decode_ms(1, 100, 100)
    assert caught.value.code is ReasonCode.BACKEND_CANNOT_RUN_SHAPE
    assert "divisible" in caught.value.detail


def test_whatever_the_package_raises_names_its_kind() -> None:
    error = perf_data.unsupported(KeyError("n_kv"))
    assert error.code is ReasonCode.BACKEND_CANNOT_RUN_SHAPE
    assert error.detail == "KeyError: 'n_kv'"


def test_shape_with_step_times_is_told_from_one_without() -> None:
    assert has_times(engine_identity(MODEL, HARDWARE, "vllm", ParallelShape(tp=4)))
    assert not has_times(engine_identity(MODEL, HARDWARE, "vllm", ParallelShape(tp=3)))
    assert not has_times(engine_identity(MODEL, "a100_sxm", "vllm", ParallelShape(tp=2)))


@pytest.mark.usefixtures("empty_folder")
def test_stored_refusal_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = engine_identity(MODEL, HARDWARE, "vllm", ParallelShape(tp=5))
    has_times.cache_clear()
    assert not has_times(identity)
    has_times.cache_clear()
    refuse_package(monkeypatch)
    assert not has_times(identity)


def test_provenance_names_package_and_data_version_per_backend() -> None:
    stated = perf_data.provenance("b60", ["vllm", "sglang"])
    assert stated["package"] == "aisimulate"
    assert stated["version"] == perf_data.package().version
    assert stated["backends"] == {"vllm": "0.28.0", "sglang": None}


def test_named_package_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(perf_data.SETTING, "some_other_core")
    perf_data.package.cache_clear()
    try:
        with pytest.raises(UnsupportedError):
            perf_data.package()
    finally:
        perf_data.package.cache_clear()
