"""Helpers for tests of the thin half: a study around the stand-in, and a desk that plays worker in this process."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy import select, text

from app import studies
from app.auth import SCOPES, Caller
from app.db.engine import transaction
from app.db.tables import CandidateRow, StudyRow, TrialRow
from app.queue import celery
from app.schemas.study import SmartSearchConfig
from tests.pure_fake import install
from workers import tasks

ANYONE = Caller("default", frozenset(SCOPES))


def document(**labels: object) -> dict[str, Any]:
    """A configuration whose labels direct the stand-in; `sweep` and `goal` replace those blocks."""
    sweep, goal = labels.pop("sweep", {}), labels.pop("goal", {"target": "throughput"})
    return {
        "search_space": {"model_name": "Qwen/Qwen3-32B-FP8", "hardware_sku": "h200_sxm", "backend": ["vllm"]},
        "workload": {"isl": 4000, "osl": 1000, "concurrency": 64, "num_request_ratio": 10},
        "goal": goal,
        "sweep": sweep,
        "labels": {name: str(value) for name, value in labels.items()},
    }


def submit(**labels: object) -> UUID:
    """A queued study of the default project."""
    config = SmartSearchConfig.model_validate(document(**labels))
    return studies.create_study(ANYONE, studies.Submission(config)).study.id


class Desk:
    """Plays broker and worker in this process: keeps messages in a list, runs their tasks one after the other."""

    def __init__(self, monkeypatch: Any) -> None:
        self.messages: list[tuple[str, list[Any]]] = []
        self.announced: list[tuple[UUID, int]] = []
        assert tasks.advance_study.name in celery.tasks
        install(monkeypatch.setattr)
        monkeypatch.setattr("app.queue._send", self._send)

    def _send(self, name: str, arguments: list[Any]) -> bool:
        self.messages.append((name, arguments))
        return True

    def work(self, each: Callable[[str, list[Any]], bool] = lambda _name, _arguments: True) -> None:
        """Run every message, and those that they bring; `each` may answer False to lose one."""
        while self.messages:
            name, arguments = self.messages.pop(0)
            if each(name, arguments):
                celery.tasks[name](*arguments)

    def run(self, study_id: UUID) -> StudyRow:
        """Wake a study and work until there are no messages."""
        self.messages.append(("spica.advance_study", [str(study_id)]))
        self.work()
        return study(study_id)


def study(study_id: UUID) -> StudyRow:
    """The study's row."""
    with transaction() as db:
        return db.get_one(StudyRow, study_id)


def trials(study_id: UUID) -> list[TrialRow]:
    """The study's trials in order."""
    with transaction() as db:
        return list(db.scalars(select(TrialRow).where(TrialRow.study_id == study_id).order_by(TrialRow.number)))


def candidates(study_id: UUID) -> list[CandidateRow]:
    """The study's candidates in order of place, those without one last."""
    query = select(CandidateRow).where(CandidateRow.study_id == study_id)
    with transaction() as db:
        return list(db.scalars(query.order_by(CandidateRow.place, CandidateRow.number)))


def results(study_id: UUID) -> list[tuple[Any, ...]]:
    """What must be the same in every run of one configuration: ids and times left out."""
    return [
        (
            row.number,
            row.place,
            row.rank,
            row.on_front,
            row.deployment,
            row.score,
            row.objectives,
            row.metrics,
            row.load,
            row.stability,
        )
        for row in candidates(study_id)
    ]


def execute(statement: str, **parameters: Any) -> None:
    """Run one statement in a transaction of its own."""
    with transaction() as db:
        db.execute(text(statement), parameters)
