"""Whole-number answers by whole-number question: what is on disk as sorted arrays, what is new in a dict.

Restoring a hundred thousand answers is a read, not a hundred thousand dict entries; a row of questions is one search.
"""

import io

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Answers:
    """Questions and answers are int64; a question is answered once."""

    def __init__(self) -> None:
        self._questions: Numbers = np.zeros(0, dtype=np.int64)
        self._answers: Numbers = np.zeros(0, dtype=np.int64)
        self._new: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._questions) + len(self._new)

    @property
    def num_new(self) -> int:
        """Answers that were added since the last `merge`."""
        return len(self._new)

    def get(self, question: int) -> int | None:
        """The answer, None when there is none."""
        answer = self._new.get(question)
        if answer is None and self._questions.size:
            place = int(self._questions.searchsorted(question))
            if place < self._questions.size and self._questions[place] == question:
                answer = int(self._answers[place])
        return answer

    def put(self, question: int, answer: int) -> None:
        """Add the answer to a question that has none."""
        self._new[question] = answer

    def row(self, questions: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
        """(answers, whether each is known), in order; an unknown answer is 0."""
        answers = np.zeros(len(questions), dtype=np.int64)
        is_known = np.zeros(len(questions), dtype=np.bool_)
        if self._questions.size:
            place = np.minimum(self._questions.searchsorted(questions), self._questions.size - 1)
            is_known = self._questions[place] == questions
            answers[is_known] = self._answers[place[is_known]]
        if self._new:
            for i in np.flatnonzero(~is_known).tolist():
                answer = self._new.get(int(questions[i]))
                if answer is not None:
                    answers[i], is_known[i] = answer, True
        return answers, is_known

    def between(self, first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
        """Questions from `first[i]` up to, not including, `last[i]` that came from disk or a merge, and their answers.

        Ascending, if the ranges are and do not overlap.
        """
        begins, ends = self._questions.searchsorted(first).tolist(), self._questions.searchsorted(last).tolist()
        ranges = [slice(begin, end) for begin, end in zip(begins, ends, strict=True)]
        return np.concatenate([self._questions[part] for part in ranges]), np.concatenate(
            [self._answers[part] for part in ranges]
        )

    def merge(self, other: "Answers | None" = None) -> None:
        """Take in what another knows, and count everything as old."""
        parts = [self] if other is None else [self, other]
        questions = [part._questions for part in parts]
        answers = [part._answers for part in parts]
        for part in parts:
            questions.append(np.fromiter(part._new.keys(), dtype=np.int64, count=len(part._new)))
            answers.append(np.fromiter(part._new.values(), dtype=np.int64, count=len(part._new)))
        self._questions, kept = np.unique(np.concatenate(questions), return_index=True)
        self._answers = np.concatenate(answers)[kept]
        self._new = {}

    def write_to(self, file: io.BytesIO) -> None:
        """Append what is old as one array int64 [2, N]."""
        np.save(file, np.stack([self._questions, self._answers]))

    @classmethod
    def read_from(cls, file: io.BytesIO) -> "Answers":
        """The next array that `write_to` wrote. Raises: ValueError, EOFError for other bytes."""
        stored = np.load(file, allow_pickle=False)
        if stored.dtype != np.int64 or stored.ndim != 2 or len(stored) != 2:
            raise ValueError("answers of another layout")
        answers = cls()
        answers._questions, answers._answers = stored
        return answers
