"""Mutated real rows: taken, or refused with line and field, never anything else. SPICA_FUZZ_ROUNDS asks for more."""

import os
import random
from pathlib import Path

from app.traces.faults import TraceRefusedError
from tests.golden.files import trace
from tests.unit.traces.helpers import take

ROUNDS = int(os.environ.get("SPICA_FUZZ_ROUNDS", "300"))
SEED = 20261129
TOKENS = [
    *(b"null", b"true", b"-1", b"0", b"0.5", b"1e17", b"1e999", b"NaN", b"Infinity", b'"x"', b"[]", b"{}", b"[["),
    *(b"18446744073709551615", b"18446744073709551616", b'"timestamp"', b'"delay"', b'"session_id"'),
    *(b",", b":", b"]", b"}", b"\n", b"\r\n", b"\\", b'"'),
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"\\ud800"', b"\x1f\x8b\x08"),
]


def mutated(rng: random.Random, text: bytes) -> bytes:
    """The text with one to three changes; some leave it a good trace."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        end = min(len(text), at + rng.choice((0, 1, 1, 3, 20)))
        kind = rng.randrange(8)
        if kind == 0:
            text = text[:at] + rng.choice(TOKENS) + text[end:]
        elif kind == 1:
            text = text[:at] + text[end:]
        elif kind == 2:
            text = text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
        elif kind == 3:
            text = text[:at]
        elif kind == 4:
            values = text.split(b":")
            values[rng.randrange(len(values))] = b" " + rng.choice(TOKENS) + b', "b"'
            text = b":".join(values)
        elif kind == 5:
            text = text.replace(b"_length", rng.choice((b"_tokens", b"_length ")), 1)
        elif kind == 6:
            text = text.replace(b", ", rng.choice((b",\t", b' , "note": "a:b", ')), rng.randint(1, 9))
        else:
            text = text[:at] + text[at:end] * 3 + text[end:]
    return text


def outcome(folder: Path, text: bytes) -> str:
    """What became of it; nothing else is allowed."""
    try:
        found = take(folder, text)
    except TraceRefusedError as error:
        refused = error
    else:
        assert found.num_requests >= 1
        return "taken"
    assert 1 <= len(refused.faults) <= 20
    for fault in refused.faults:
        assert fault.fault
        assert fault.remedy
        assert fault.about["line"] or fault.about["field"] == "trace"
        assert fault.about["field"]
    return "refused"


def test_mutated_rows_are_taken_or_refused_with_line_and_field(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    sources = [trace("mooncake_arxiv_head1000.jsonl").splitlines(), trace("mooncake-sessions.jsonl").splitlines()]
    outcomes = {"taken": 0, "refused": 0}
    for _ in range(ROUNDS):
        rows = rng.choice(sources)
        start = rng.randrange(len(rows) - 4)
        text = mutated(rng, b"\n".join(rows[start : start + rng.randint(1, 4)]))
        outcomes[outcome(tmp_path, text)] += 1
    assert min(outcomes.values()) > ROUNDS // 20, outcomes
