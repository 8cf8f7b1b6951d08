"""Deployments to verdicts: capacity, load, requests, replay, score. The pure half's one entrance for the thin half.

See `workers.verdict` for the contract of `evaluate_many`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from app.schemas.deployment import Deployment
from app.schemas.goal import Goal
from app.schemas.status import ReasonCode, TrialStatus
from app.schemas.study import SmartSearchConfig
from workers.errors import EvaluationError, InfeasibleError, StoppedError, UnsupportedError
from workers.fleets import Run, plan_run
from workers.replay.fleet import Fleet
from workers.replay.loop import replay
from workers.replay.metrics import Metric, Sla, report
from workers.replay.outcomes import Outcomes
from workers.replay.timeline import Timeline, timeline
from workers.search.score import Score, score
from workers.timing.aic import persist_all
from workers.traffic.workload import TraceFile
from workers.verdict import Reason, Verdict
