"""`vizier`: one study of Google Vizier's GP bandit per branch, asked in a process of its own.

The bandit keeps nothing: every question carries the branch's whole history, from the rows, and a seed that depends on
the study's seed, the branch and the length of that history. A study that was interrupted gets the same suggestions.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.extras import VIZIER_SETTING, vizier_python
from app.schemas.goal import Goal
from app.schemas.status import ReasonCode, TrialStatus
from workers.errors import SamplerError, StoppedError
from workers.search.history import Proposal, Told
from workers.search.parameters import Parameters
from workers.search.score import signed
from workers.search.space import Space
from workers.timing import disk_cache

_PROCESS = Path(__file__).with_name("bandit_process.py")
_LOOK_EVERY_S = 0.5
_LAST_WORDS = 300

ShouldStop = Callable[[], bool]


class Bandit:
    """The bandit of one branch."""

    def __init__(self, space: Space, number: int, is_moe: bool) -> None:
        self._space, self._number = space, number
        self._parameters = Parameters(space, number, is_moe)

    def ask(self, history: Sequence[Told], count: int, seed: int, should_stop: ShouldStop) -> list[Proposal]:
        """`count` proposals, repeats of earlier ones and of each other included.

        Raises: SamplerError; StoppedError when `should_stop` says so.
        """
        branch = self._space.branches[self._number]
        own = [told for told in history if told.suggestion is not None and told.deployment.mode == branch.mode]
        described = self._parameters.described()
        if not described:
            return [self._proposal({})]
        question = {
            "seed": _seed(seed, branch.mode, len(own)),
            "count": count,
            "objectives": list(self._space.config.goal.objectives),
            "parameters": described,
            "trials": [_trial(self._space.config.goal, told) for told in own],
        }
        return [self._proposal(values) for values in answered(question, should_stop)["suggestions"]]

    def _proposal(self, values: Mapping[str, Any]) -> Proposal:
        branch, place = self._space.branches[self._number], self._parameters.place(values)
        return Proposal(
            self._space.deployment(self._number, place.number * len(branch.loads), place.ratio), dict(values)
        )


def _seed(seed: int, mode: str, num_told: int) -> int:
    digest = hashlib.blake2b(f"{seed} {mode} {num_told}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


def _trial(goal: Goal, told: Told) -> dict[str, Any]:
    """Whatever ended without a result is infeasible to the bandit: it must not be left out, or it would come again."""
    if told.status != TrialStatus.FEASIBLE:
        return {"values": told.suggestion, "gains": None}
    gains = [signed(name, value) for name, value in zip(goal.objectives, told.objectives, strict=True)]
    return {"values": told.suggestion, "gains": gains}


def answered(question: Mapping[str, Any], should_stop: ShouldStop) -> dict[str, Any]:
    """The answer of a fresh process. Raises: SamplerError; StoppedError."""
    python = vizier_python()
    if python is None:
        raise SamplerError(f"the extra `vizier` is not installed on this worker ({VIZIER_SETTING} names none)")
    command = [str(python), str(_PROCESS), str(os.getpid())]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    )
    body: str | None = json.dumps(question)
    while True:
        try:
            out, said = process.communicate(body, timeout=_LOOK_EVERY_S)
            break
        except subprocess.TimeoutExpired:
            body = None
            if should_stop():
                process.kill()
                process.communicate()
                raise StoppedError(ReasonCode.CANCELLED, "stopped while the bandit was thinking") from None
    if process.returncode != 0:
        raise SamplerError(f"the bandit's process ended with {process.returncode}: {said.strip()[-_LAST_WORDS:]}")
    answer: dict[str, Any] = json.loads(out)
    return answer


def _environment() -> dict[str, str]:
    """One thread, no accelerator, and what was compiled for one question kept for the next."""
    root = disk_cache.folder()
    kept = {} if root is None else {"JAX_COMPILATION_CACHE_DIR": str(root / "jax")}
    return {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": "", **kept}
