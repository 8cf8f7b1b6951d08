"""The service's operations as a class: typed arguments, answers as the models of the contract.

with Client("http://127.0.0.1:8000") as client:
    study = client.submit(Path("study.json").read_bytes())
    study = client.follow(study.id)
    print(client.candidates(study.id, limit=5).items)
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import httpx

from app.schemas.candidate import CandidatePage, CandidateView
from app.schemas.problem import Problem
from app.schemas.report import Report
from app.schemas.status import STUDY_TERMINAL, StudyStatus, TrialStatus
from app.schemas.study_view import Comparison, StudyPage, StudyView, TrialPage
from app.schemas.trace import TracePage, TraceView

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TRIES = 5
POLL_WAIT_S = 30.0
PATIENCE_S = 15.0
PAUSE_S = 0.2
"""Between two polls; before try n + 1, n squared times as long: six seconds in all."""
PLANNING_S = 45.0
"""A plan of a wide space may take as long."""
UPLOAD_S = 600.0
"""The service answers an upload once every row is checked."""

View = Literal["ranked", "front", "all"]
Format = Literal["vllm", "sglang", "trtllm", "dynamo"]
TraceFormat = Literal["mooncake", "azure", "burstgpt", "bailian", "dynamo"]


class UnreachableError(Exception):
    """The service did not answer, or answered that it is out of order, as often as it was tried."""


class RefusedError(Exception):
    """The service refused: `status`, and `problem` with every fault."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(f"{problem.title}: {problem.detail}")
        self.status = status
        self.problem = problem

    def lines(self) -> Iterator[str]:
        """The refusal for a terminal: what is wrong, then each fault with its remedy."""
        yield str(self)
        for fault in self.problem.errors or ():
            yield f"  {fault.pointer or 'the document'}: {fault.fault}" + (f"; {fault.remedy}" if fault.remedy else "")


class LateError(Exception):
    """The study has not ended in the time that it was given."""


class Client:
    """The service's operations, answers as models. Requests that may be repeated are, while the service is away.

    Raises, every method: UnreachableError, RefusedError.
    """

    def __init__(self, url: str, api_key: str | None = None, transport: httpx.BaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A proxy of the environment cannot reach this machine's own loopback.
        through_proxy = httpx.URL(url).host not in LOOPBACK
        self._http = httpx.Client(base_url=url, headers=headers, transport=transport, trust_env=through_proxy)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def _send(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, wait_s: float = 0, **content: Any
    ) -> httpx.Response:
        # None, not an empty mapping: that would strip the query of a page's own link.
        given = {name: value for name, value in query.items() if value is not None} if query else None
        timeout = httpx.Timeout(PATIENCE_S + wait_s, connect=5.0)
        said = ""
        for attempt in range(TRIES):
            time.sleep(PAUSE_S * attempt**2)
            try:
                answer = self._http.request(method, path, params=given, timeout=timeout, **content)
            except httpx.UnsupportedProtocol:
                raise
            except httpx.TransportError as error:
                said = str(error) or type(error).__name__
                continue
            if answer.status_code < 400:
                return answer
            if answer.status_code < 500:
                raise RefusedError(answer.status_code, _problem(answer))
            said = _problem(answer).detail
        raise UnreachableError(f"{method} {self._http.base_url.join(path)}: {said}")

    def submit(
        self,
        config: bytes,
        media_type: str = "application/json",
        *,
        trace: Path | None = None,
        wait: float = 0,
        reuse: bool = False,
        idempotency_key: str | None = None,
    ) -> StudyView:
        """Submit a configuration, with a trace beside it if one is given.

        Without a key of the caller's one is made up, so that a lost answer never means a second study.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid4())}
        query = {"wait": wait, "reuse": reuse}
        answer = self._post_config(query, headers, config, media_type, trace)
        return StudyView.model_validate_json(answer.content)

    def plan_of(self, config: bytes, media_type: str = "application/json", *, trace: Path | None = None) -> Any:
        """The plan of a configuration; nothing is stored or run."""
        return self._post_config({"dry_run": True, "wait": PLANNING_S}, {}, config, media_type, trace).json()

    def _post_config(
        self, query: dict[str, Any], headers: dict[str, str], config: bytes, media_type: str, trace: Path | None
    ) -> httpx.Response:
        with ExitStack() as stack:
            content: dict[str, Any] = {"content": config, "headers": headers | {"Content-Type": media_type}}
            if trace is not None:
                rows = (trace.name, stack.enter_context(trace.open("rb")))
                content = {"files": {"config": ("config", config, media_type), "trace": rows}, "headers": headers}
            wait_s = query["wait"] + (UPLOAD_S if trace is not None else 0)
            return self._send("POST", "/studies", query, wait_s, **content)

    def studies(
        self,
        *,
        status: StudyStatus | None = None,
        label: str | None = None,
        model_name: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> StudyPage:
        """A page of studies, newest first."""
        query = {"status": status, "label": label, "model_name": model_name, "limit": limit, "cursor": cursor}
        return StudyPage.model_validate_json(self._send("GET", "/studies", query).content)

    def study(self, study_id: UUID, *, wait: float = 0, version: int | None = None) -> StudyView:
        """One study; with `wait` once it has ended, with `version` too as soon as it is past that version."""
        answer = self._send("GET", f"/studies/{study_id}", {"wait": wait, "version": version}, wait)
        return StudyView.model_validate_json(answer.content)

    def follow(
        self, study_id: UUID, seen: Callable[[StudyView], None] = lambda _: None, timeout: float = 86400
    ) -> StudyView:
        """Wait until a study has ended; `seen` gets every state on the way. Raises: LateError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        study = self.study(study_id)
        while True:
            seen(study)
            left_s = deadline - time.monotonic()
            if study.status in STUDY_TERMINAL:
                return study
            if left_s <= 0:
                raise LateError(f"study {study.id} is still {study.status} after {timeout:g} s; it goes on")
            time.sleep(PAUSE_S)
            study = self.study(study_id, wait=min(POLL_WAIT_S, left_s), version=study.version)

    def cancel(self, study_id: UUID) -> StudyView:
        """Ask a study to stop."""
        return StudyView.model_validate_json(self._send("POST", f"/studies/{study_id}/cancel").content)

    def delete(self, study_id: UUID) -> None:
        """Delete an ended study."""
        self._send("DELETE", f"/studies/{study_id}")

    def plan(self, study_id: UUID) -> Any:
        """The plan of a study."""
        return self._send("GET", f"/studies/{study_id}/plan").json()

    def trials(
        self, study_id: UUID, *, status: TrialStatus | None = None, limit: int = 50, cursor: str | None = None
    ) -> TrialPage:
        """A page of trials in the order of asking."""
        query = {"status": status, "limit": limit, "cursor": cursor}
        return TrialPage.model_validate_json(self._send("GET", f"/studies/{study_id}/trials", query).content)

    def candidates(
        self, study_id: UUID, *, view: View = "ranked", limit: int = 50, cursor: str | None = None
    ) -> CandidatePage:
        """A page of candidates, best first."""
        query = {"view": view, "limit": limit, "cursor": cursor}
        return CandidatePage.model_validate_json(self._send("GET", f"/studies/{study_id}/candidates", query).content)

    def candidates_csv(self, study_id: UUID, *, view: View = "ranked", fields: str | None = None) -> Iterator[str]:
        """All candidates as comma-separated values, page by page; the header line comes once."""
        query: dict[str, Any] | None = {"view": view, "limit": 500, "fields": fields}
        path, is_first = f"/studies/{study_id}/candidates", True
        while True:
            answer = self._send("GET", path, query, headers={"Accept": "text/csv"})
            yield answer.text if is_first else answer.text.partition("\r\n")[2]
            if "next" not in answer.links:
                return
            path, query, is_first = answer.links["next"]["url"], None, False

    def candidate(self, study_id: UUID, candidate_id: UUID) -> CandidateView:
        """One candidate."""
        path = f"/studies/{study_id}/candidates/{candidate_id}"
        return CandidateView.model_validate_json(self._send("GET", path).content)

    def report(self, study_id: UUID, candidate_id: UUID) -> Report:
        """Everything that the replay of a candidate measured."""
        path = f"/studies/{study_id}/candidates/{candidate_id}/report"
        return Report.model_validate_json(self._send("GET", path).content)

    def deployment(self, study_id: UUID, candidate_id: UUID, format: Format = "dynamo") -> str:
        """How to run a candidate for real: shell commands of its engine, or a Dynamo manifest."""
        path = f"/studies/{study_id}/candidates/{candidate_id}/deployment"
        return self._send("GET", path, {"format": format}).text

    def compare(self, study_id: UUID, baseline: UUID, tolerance: float | None = None) -> Comparison:
        """Both winners metric by metric. With a tolerance, RefusedError (422, regression) when worse by more."""
        query = {"baseline": str(baseline), "tolerance": tolerance}
        return Comparison.model_validate_json(self._send("GET", f"/studies/{study_id}/compare", query).content)

    def upload_trace(
        self,
        rows: Path,
        *,
        name: str | None = None,
        format: TraceFormat = "mooncake",
        time_unit: Literal["ms", "s"] | None = None,
        block_size: int | None = None,
    ) -> TraceView:
        """Store a trace, plain or compressed; the same rows again give the same trace."""
        query = {"name": name, "format": format, "time_unit": time_unit, "block_size": block_size}
        with rows.open("rb") as file:
            sent = {"trace": (rows.name, file)}
            answer = self._send("POST", "/traces", query, UPLOAD_S, files=sent)
        return TraceView.model_validate_json(answer.content)

    def traces(self, *, name: str | None = None, limit: int = 50, cursor: str | None = None) -> TracePage:
        """A page of traces, newest first."""
        query = {"name": name, "limit": limit, "cursor": cursor}
        return TracePage.model_validate_json(self._send("GET", "/traces", query).content)

    def trace(self, trace_id: UUID) -> TraceView:
        """One trace: what it holds, and what its upload was like."""
        return TraceView.model_validate_json(self._send("GET", f"/traces/{trace_id}").content)

    def delete_trace(self, trace_id: UUID) -> None:
        """Delete a trace that no study uses."""
        self._send("DELETE", f"/traces/{trace_id}")

    def catalog(self) -> Any:
        """What can be searched."""
        return self._send("GET", "/catalog").json()


def _problem(answer: httpx.Response) -> Problem:
    """The answer's problem document, or what stands for one when something in between answered."""
    try:
        return Problem.model_validate_json(answer.content)
    except ValueError:
        return Problem(type="about:blank", title=f"HTTP {answer.status_code}", detail=answer.text[:200])
