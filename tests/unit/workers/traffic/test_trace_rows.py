"""Reading and checking Mooncake files (traffic spec, sections 3.1 and 3.5)."""

from typing import Any

import orjson
import pytest

from workers.traffic.trace_rows import TraceFaultError, TraceRows, read_rows

GOOD = {"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1]}


def text(*rows: dict[str, Any]) -> bytes:
    return b"\n".join(orjson.dumps(row) for row in rows)


def read(*rows: dict[str, Any]) -> TraceRows:
    return read_rows(text(*rows))


def test_row_aliases_are_read() -> None:
    rows = read({"created_time": 5.5, "input_tokens": 10, "output_tokens": 3, "hash_ids": [1]})
    assert (rows.timestamp_ms[0], rows.input_tokens[0], rows.output_tokens[0]) == (5.5, 10, 3)


def test_row_missing_input_length_takes_the_blocks() -> None:
    rows = read_rows(text({"timestamp": 0, "output_length": 2, "hash_ids": [1, 2]}), trace_block_size=64)
    assert rows.input_tokens.tolist() == [128]


def test_rows_without_session_are_named_by_their_line_blank_lines_counted() -> None:
    rows = read_rows(b"\n" + text(GOOD) + b"\r\n  \n" + text(GOOD) + b"\n")
    assert rows.session_names == ("request_2", "request_4")
    assert rows.line.tolist() == [2, 4]


def test_rows_of_one_session_share_its_index() -> None:
    rows = read({**GOOD, "session_id": "a"}, GOOD, {**GOOD, "session_id": "a"})
    assert rows.session.tolist() == [0, 1, 0]
    assert rows.session_names == ("a", "request_2")


def test_row_unknown_fields_are_ignored() -> None:
    assert read({**GOOD, "foo": {"bar": 1}}).input_tokens.tolist() == [10]


def test_hash_ids_up_to_64_bits_stay_distinct() -> None:
    rows = read({**GOOD, "hash_ids": [2**64 - 1, 2**63, 2**62, 3, 2**64 - 1]})
    ids = rows.block_id.tolist()
    assert len(set(ids)) == 4
    assert ids[0] == ids[4]
    assert ids[3] == 3
    assert min(ids) >= 0


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ({**GOOD, "input_length": 600}, "exceeds hash_ids capacity"),
        ({**GOOD, "hash_ids": []}, "exceeds hash_ids capacity"),
        ({"timestamp": 0, "input_length": 10, "hash_ids": [1]}, "is missing output_length"),
        ({"timestamp": 0, "input_length": 10, "output_length": 1}, "is missing hash_ids"),
        ({**GOOD, "input_tokens": 10}, "duplicate field"),
        ({**GOOD, "delay": 1, "delay_ms": 1}, "duplicate field"),
        ({**GOOD, "timestamp": "0"}, "invalid type"),
        ({**GOOD, "timestamp": True}, "invalid type"),
        ({**GOOD, "input_length": 10.5}, "invalid type"),
        ({**GOOD, "output_length": 2.0}, "invalid type"),
        ({**GOOD, "output_length": -1}, "invalid value"),
        ({**GOOD, "hash_ids": [-1]}, "invalid value"),
        ({**GOOD, "hash_ids": [1.0]}, "invalid type"),
        ({**GOOD, "hash_ids": "1"}, "invalid type"),
        ({**GOOD, "session_id": 3}, "invalid type"),
        ({**GOOD, "output_token_ids": [5]}, "output_token_ids length"),
    ],
)
def test_row_faulty_is_refused_with_its_line(row: dict[str, Any], detail: str) -> None:
    with pytest.raises(TraceFaultError, match=detail) as caught:
        read(GOOD, row)
    assert caught.value.line == 2


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        (b'{"timestamp":0', "EOF while parsing"),
        (b'{"timestamp":NaN,"input_length":10,"output_length":2,"hash_ids":[1]}', "expected value"),
        (b"[1,2]", "invalid type"),
        (b"\xef\xbb\xbf" + text(GOOD), "expected value"),
        (b"\x1f\x8b\x08\xff\xfe", "valid UTF-8"),
        (text({**GOOD, "hash_ids": []}).replace(b"[]", b"[18446744073709551616]"), "invalid type"),
    ],
)
def test_line_that_is_no_row_is_refused(line: bytes, detail: str) -> None:
    with pytest.raises(TraceFaultError, match=detail):
        read_rows(line)


def test_file_without_rows_is_refused() -> None:
    with pytest.raises(TraceFaultError, match="did not contain any requests") as caught:
        read_rows(b"\n \n")
    assert caught.value.line is None


def test_trace_block_size_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="trace_block_size"):
        read_rows(text(GOOD), trace_block_size=0)
