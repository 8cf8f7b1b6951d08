"""Answers by question, old and new."""

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.timing.answers import Answers

_known = st.dictionaries(st.integers(0, 60), st.integers(0, 2**62), max_size=20)


def _of(old: dict[int, int], new: dict[int, int]) -> Answers:
    answers = Answers()
    for question, answer in old.items():
        answers.put(question, answer)
    answers.merge()
    for question in new.keys() - old.keys():
        answers.put(question, new[question])
    return answers


@given(_known, _known)
def test_answers_old_or_new_are_those_given(old: dict[int, int], new: dict[int, int]) -> None:
    answers, expected = _of(old, new), new | old
    row, is_known = answers.row(np.arange(61))
    assert [answers.get(question) for question in range(61)] == [expected.get(question) for question in range(61)]
    assert [int(row[q]) if is_known[q] else None for q in range(61)] == [expected.get(q) for q in range(61)]
    assert len(answers) == len(expected)


@given(_known, _known)
def test_answers_merged_and_written_hold_what_both_knew(one: dict[int, int], other: dict[int, int]) -> None:
    agreeing = {question: one.get(question, answer) for question, answer in other.items()}
    answers = _of({}, one)
    answers.merge(_of({}, agreeing))
    file = io.BytesIO()
    answers.write_to(file)
    file.seek(0)
    questions, values = Answers.read_from(file).between(np.array([0]), np.array([61]))
    assert dict(zip(questions.tolist(), values.tolist(), strict=True)) == agreeing | one
    assert list(questions) == sorted(questions)
