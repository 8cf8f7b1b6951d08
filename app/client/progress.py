"""What the command line shows of a study: a progress bar, a summary, a table of candidates."""

import sys
import time
from typing import TextIO

from app.schemas.candidate import CandidateView
from app.schemas.status import STUDY_TERMINAL
from app.schemas.study_view import StudyView

BAR_CELLS = 30
EVERY_S = {True: 0.1, False: 5.0}
"""Least pause between two updates on a terminal (True) and in a log (False)."""


class ProgressBar:
    """Shows a study as it goes: one line that changes on a terminal, now and then a new line elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._shown_at = float("-inf")
        self._shown_status = ""

    def show(self, study: StudyView) -> None:
        """The present state; left out when the last one is too fresh and nothing but counts changed."""
        now, ended = time.monotonic(), study.status in STUDY_TERMINAL
        if study.status == self._shown_status and now - self._shown_at < EVERY_S[self._is_terminal]:
            return
        self._shown_at, self._shown_status = now, study.status
        if self._is_terminal:
            self._stream.write("\r\x1b[K" + line(study) + ("\n" if ended else ""))
        else:
            self._stream.write(line(study) + "\n")
        self._stream.flush()


def line(study: StudyView) -> str:
    """State, bar, counts, pace, time left and the best so far on one line."""
    progress = study.progress
    cells = round((progress.fraction or 0.0) * BAR_CELLS)
    share = "   ?" if progress.fraction is None else f"{progress.fraction:4.0%}"
    parts = [f"{study.status:<9} [{'#' * cells}{'.' * (BAR_CELLS - cells)}] {share}  {progress.done} trials"]
    if progress.per_second:
        parts.append(f"{progress.per_second:.0f}/s")
    if progress.eta_s and study.status not in STUDY_TERMINAL:
        parts.append(f"{progress.eta_s:.0f} s left")
    if study.best is not None:
        parts.append(
            f"best {study.best.score:,.6g} on {study.best.used_gpus} GPU{'' if study.best.used_gpus == 1 else 's'}"
        )
    return ", ".join(parts)


def summary(study: StudyView) -> str:
    """A study in a few lines."""
    progress = study.progress
    counts = {
        name: getattr(progress, name) for name in ("feasible", "infeasible", "unsupported", "failed", "timed_out")
    }
    lines = [
        f"study     {study.id}" + (f"  {study.name}" if study.name else ""),
        f"status    {line(study)}",
        f"trials    {', '.join(f'{count} {name}' for name, count in counts.items() if count) or 'none yet'}",
    ]
    if study.labels:
        lines.append(f"labels    {', '.join(f'{key}={value}' for key, value in study.labels.items())}")
    lines += [f"warning   {each.pointer}: {each.detail}" for each in study.warnings]
    if study.problem is not None:
        lines.append(f"problem   {study.problem.title}: {study.problem.detail}")
    return "\n".join(lines)


def table(candidates: list[CandidateView]) -> str:
    """Candidates as aligned columns, in the order given."""
    rows = [_row(candidate) for candidate in candidates]
    if not rows:
        return "no candidates"
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    lines = [{name: name for name in widths}, *rows]
    return "\n".join(
        "  ".join(f"{each[name]:{'<' if name == 'deployment' else '>'}{width}}" for name, width in widths.items())
        for each in lines
    )


def _row(candidate: CandidateView) -> dict[str, str]:
    deployment = candidate.deployment
    pools = [(role, deployment[role]) for role in ("agg", "prefill", "decode") if deployment.get(role)]
    shown = " + ".join(f"{role} {pool['replicas']}x {_shape(pool['shape'])}" for role, pool in pools)
    return {
        "rank": "-" if candidate.rank is None else str(candidate.rank),
        "candidate": str(candidate.id),
        "deployment": f"{deployment['backend']} {shown}",
        "GPUs": str(candidate.used_gpus),
        "batching": " + ".join(f"{pool['max_num_batched_tokens']}/{pool['max_num_seqs']}" for _, pool in pools),
        "router": deployment["router"]["mode"],
        **{name: f"{value:,.6g}" for name, value in candidate.objectives.items()},
    }


def _shape(shape: dict[str, int]) -> str:
    return ".".join(f"{name}{width}" for name, width in shape.items() if width > 1) or "tp1"
