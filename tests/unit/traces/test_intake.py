"""From the bytes of an upload to a checked trace."""

import gzip
from contextlib import suppress
from pathlib import Path

import pytest
import zstandard

from app.errors import TooLargeError
from app.traces.faults import TraceRefusedError
from app.traces.intake import Limits
from tests.golden.files import trace
from tests.unit.traces.helpers import LIMITS, faults, field_case, lines, refusal, row, take


def test_unsorted_rows_are_sorted_counted_and_the_same_trace_as_sorted_ones(tmp_path: Path) -> None:
    text = field_case("F02")
    ordered = b"".join(
        sorted(text.splitlines(keepends=True), key=lambda line: float(line.split(b":")[1].split(b",")[0]))
    )
    unsorted, known = take(tmp_path, text), take(tmp_path, ordered)
    assert unsorted.sha256 == known.sha256
    assert known.upload["num_rows_moved"] == 0
    report = unsorted.upload
    assert (report["num_rows_moved"], report["first_moved_line"], report["first_backward_line"]) == (8, 3, 4)
    assert report["largest_step_back_ms"] == 7540 - 260


def test_zero_and_one_token_outputs_are_taken_and_counted(tmp_path: Path) -> None:
    found = take(tmp_path, field_case("F03"))
    assert found.num_requests == 40
    assert (found.summary["num_zero_token_outputs"], found.summary["num_one_token_outputs"]) == (5, 5)
    assert any("5 requests have no output" in warning for warning in found.summary["warnings"])


def test_ids_that_do_not_cover_either_way_are_all_refused_with_numbers(tmp_path: Path) -> None:
    error = refusal(tmp_path, field_case("F04"))
    found = [(each.about["line"], each.about["expected"], each.about["found"]) for each in error.faults]
    assert found == [(1, 10, 2), (3, 3, 2), (4, 2, 4)]
    assert error.extensions["num_faulty_rows"] == 3
    assert error.extensions["block_size_that_fits"] is None


def test_block_size_that_fits_every_row_is_named(tmp_path: Path) -> None:
    text = trace("dynamo_agent_pi.blk16.mooncake.jsonl")
    error = refusal(tmp_path, text)
    assert error.extensions["block_size_that_fits"] == 16
    assert all("block_size=16" in each.remedy for each in error.faults)
    assert take(tmp_path, text, block_size=16).block_size == 16


def test_every_uncovered_row_is_counted_beyond_the_twenty_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, lines(*(row(hash_ids=[1]) for _ in range(5000))))
    assert len(error.faults) == 20
    assert error.extensions["num_faulty_rows"] == 5000


def test_epoch_clock_is_rebased_and_its_start_kept(tmp_path: Path) -> None:
    found = take(tmp_path, field_case("F12"))
    assert found.upload["first_timestamp_ms"] == 1764000000539
    assert 45 * 60_000 < found.summary["span_ms"] < 47 * 60_000
    assert found.summary["longest_gap_ms"] > 44 * 60_000


def test_seconds_taken_for_milliseconds_earn_a_warning_that_names_the_remedy(tmp_path: Path) -> None:
    found = take(tmp_path, field_case("F13"))
    assert found.summary["span_ms"] == pytest.approx(115.744)
    assert found.summary["mean_rate_rps"] > 2500
    assert found.summary["peak_rate_rps"] >= found.summary["mean_rate_rps"]
    assert any("time_unit=s" in warning for warning in found.summary["warnings"])


def test_time_unit_of_seconds_is_the_remedy(tmp_path: Path) -> None:
    found = take(tmp_path, field_case("F13"), time_unit="s")
    assert found.summary["span_ms"] == 115744.0
    assert found.summary["warnings"] == []


def test_time_unit_scales_delay_but_not_delay_ms(tmp_path: Path) -> None:
    turns = [row(session_id="a"), row(session_id="a", timestamp=None, delay=0.5)]
    plain = take(tmp_path, lines(turns[0], row(session_id="a", timestamp=None, delay_ms=500)))
    assert take(tmp_path, lines(*turns), time_unit="s").sha256 == plain.sha256


@pytest.mark.parametrize("feed_bytes", [1, 100, 1 << 20])
def test_pieces_of_any_size_give_the_same_trace(tmp_path: Path, feed_bytes: int) -> None:
    text = field_case("F02")
    assert take(tmp_path, text, feed_bytes=feed_bytes) == take(tmp_path, text)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_text_gives_the_same_trace(tmp_path: Path, compress: object) -> None:
    text = trace("mooncake_arxiv_head1000.jsonl")
    packed = compress(text[:100_000]) + compress(text[100_000:])  # type: ignore[operator]
    found = take(tmp_path, packed, feed_bytes=1000)
    assert found.sha256 == take(tmp_path, text).sha256
    assert found.upload["compression"] in ("gzip", "zstd")
    assert found.upload["num_decompressed_bytes"] == len(text)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_compressed_stream_cut_off_is_refused(tmp_path: Path, compress: object) -> None:
    packed = compress(trace("mooncake_arxiv_head1000.jsonl"))  # type: ignore[operator]
    assert "cut off" in str(refusal(tmp_path, packed[: len(packed) // 2]))


def test_compressed_stream_with_a_wrong_byte_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(field_case("F02")))
    packed[40] ^= 0xFF
    assert "gzip stream is broken" in str(refusal(tmp_path, bytes(packed)))


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("text", [b"\n", b"{}\n", b" "], ids=["blank", "empty", "one-line"])
def test_bomb_is_stopped_at_a_limit(tmp_path: Path, compress: object, text: bytes) -> None:
    bomb = compress(text * ((1 << 24) // len(text)))  # type: ignore[operator]
    limits = Limits(rows=1000, bytes=1 << 20, decompressed_bytes=1 << 22)
    with pytest.raises((TooLargeError, TraceRefusedError), match=r"more than|larger than|longer than"):
        take(tmp_path, bomb, limits)


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (LIMITS._replace(rows=59), "trace_rows"),
        (LIMITS._replace(bytes=6000), "trace_bytes"),
        (LIMITS._replace(decompressed_bytes=6000), "trace_decompressed_bytes"),
    ],
)
def test_trace_beyond_a_limit_is_refused_by_its_name(tmp_path: Path, limits: Limits, name: str) -> None:
    with pytest.raises(TooLargeError) as refused:
        take(tmp_path, field_case("F02"), limits)
    assert refused.value.extensions["limit_name"] == name


@pytest.mark.parametrize("content", [field_case("F02"), field_case("F04"), b"{", b""])
def test_closed_intake_leaves_nothing_behind(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    with suppress(TraceRefusedError):
        take(folder, content)
    assert not (folder / "intake").exists()


def test_byte_order_mark_crlf_blank_lines_and_unknown_fields_are_taken_and_reported(tmp_path: Path) -> None:
    plain = lines(row(), row(timestamp=5))
    marked = b"\xef\xbb\xbf" + lines(row(color="red")).replace(b"\n", b"\r\n") + b"\r\n  \n" + lines(row(timestamp=5))
    found = take(tmp_path, marked)
    assert found.sha256 == take(tmp_path, plain).sha256
    report = found.upload
    assert (report["has_bom"], report["num_crlf_lines"], report["num_blank_lines"]) == (True, 2, 2)
    assert report["unknown_fields"] == {"color": 1}
    assert len(report["warnings"]) == 3


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"timestamp": None}, "timestamp"),
        ({"timestamp": "12"}, "timestamp"),
        ({"timestamp": True}, "timestamp"),
        ({"timestamp": 1e300}, "timestamp"),
        ({"input_length": 0, "hash_ids": []}, "input_length"),
        ({"input_length": None, "hash_ids": []}, "input_length"),
        ({"input_length": 600.0}, "input_length"),
        ({"input_length": -600}, "input_length"),
        ({"output_length": None}, "output_length"),
        ({"output_length": False}, "output_length"),
        ({"output_length": -1}, "output_length"),
        ({"output_length": 2**31}, "output_length"),
        ({"hash_ids": "1,2"}, "hash_ids"),
        ({"hash_ids": [1, 2.5]}, "hash_ids"),
        ({"hash_ids": [1, -2]}, "hash_ids"),
        ({"hash_ids": [1, True]}, "hash_ids"),
        ({"hash_ids": [1, 2**64]}, "hash_ids"),
        ({"hash_ids": [1]}, "hash_ids"),
        ({"hash_ids": [1, 2, 3]}, "hash_ids"),
        ({"hash_ids": None}, "hash_ids"),
        ({"session_id": 7}, "session_id"),
        ({"session_id": "a", "delay": -1}, "delay"),
        ({"session_id": "a", "delay": 1}, "delay"),
        ({"session_id": "a", "timestamp": None}, "timestamp"),
        ({"delay": 1}, "delay"),
        ({"input_tokens": 600}, "input_length"),
        ({"output_token_ids": [1, 2]}, "output_token_ids"),
    ],
)
def test_faulty_row_is_named_by_line_and_field(tmp_path: Path, changes: dict[str, object], name: str) -> None:
    unserializable = changes.get("hash_ids") == [1, 2**64]
    bad = lines(row(**(changes | ({"hash_ids": [1, 2**63]} if unserializable else {}))))
    if unserializable:
        bad = bad.replace(str(2**63).encode(), str(2**64).encode())
    assert (3, name) in faults(tmp_path, lines(row(), row()) + bad + lines(row()))


@pytest.mark.parametrize(
    ("line", "reason", "place"),
    [
        (b'{"timestamp":0,"input_length":600,"output_', "cut off", "row"),
        (b'{"timestamp":NaN,"input_length":1,"output_length":1}', "NaN", "timestamp"),
        (b"[1,2]", "a list", "row"),
        (b"hello", "not JSON", "row"),
        (b'{"session_id":"\xff"}', "UTF-8", "row"),
        (b'{"timestamp":1,"timestamp":2,"input_length":600,"output_length":1,"hash_ids":[1,2]}', "twice", "timestamp"),
    ],
)
def test_line_that_is_no_row_is_named(tmp_path: Path, line: bytes, reason: str, place: str) -> None:
    (fault,) = refusal(tmp_path, lines(row()) + line).faults
    assert (fault.about["line"], fault.about["field"]) == (2, place)
    assert reason in fault.fault


def test_every_fault_of_a_row_and_of_the_file_is_named(tmp_path: Path) -> None:
    bad = lines(row(timestamp="x", output_length=-1), row(), row(input_length=True))
    assert faults(tmp_path, bad) == [(1, "timestamp"), (1, "output_length"), (3, "input_length")]


def test_empty_trace_is_refused(tmp_path: Path) -> None:
    assert "holds no requests" in str(refusal(tmp_path, b"\n\n"))


def test_rows_without_any_ids_are_taken_as_sharing_unknown(tmp_path: Path) -> None:
    found = take(tmp_path, lines(row(hash_ids=None), row(hash_ids=None, timestamp=3)))
    assert (found.summary["sharing"], found.summary["ideal_prefix_share"]) == ("unknown", None)
    assert any("unknown" in warning for warning in found.summary["warnings"])


def test_missing_ids_and_missing_lengths_in_one_batch_are_named(tmp_path: Path) -> None:
    assert faults(tmp_path, lines(row(input_length=None), row(hash_ids=None), row(input_length=None))) == [
        (2, "hash_ids")
    ]


def test_missing_input_length_is_that_of_the_ids(tmp_path: Path) -> None:
    found = take(tmp_path, lines(row(input_length=None)))
    assert found.summary["input_tokens"] == 1024


def test_same_rows_with_another_block_size_are_another_trace(tmp_path: Path) -> None:
    text = lines(row(hash_ids=None))
    assert take(tmp_path, text, block_size=16).sha256 != take(tmp_path, text).sha256


def test_turns_of_a_session_stay_behind_each_other_when_sorted(tmp_path: Path) -> None:
    late = row(session_id="b", timestamp=900)
    turn = row(session_id="b", timestamp=None, delay=4)
    early = row(session_id="a", timestamp=100)
    assert take(tmp_path, lines(late, turn, early)).sha256 == take(tmp_path, lines(early, late, turn)).sha256
