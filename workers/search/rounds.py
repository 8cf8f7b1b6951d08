"""Budgets kept exactly: what a client's rounds still allow, worked out from the history alone.

Source: search.md, section 4.3. A round of a branch wants `round_size` new, unique, feasible results and takes up to 11
times as many trials for them; one that ends short ends its branch. Branches run one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.schemas.status import TrialStatus
from app.schemas.sweep import Sweep
from workers.search.history import Told

TRIALS_PER_RESULT = 11


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be asked next: `trials` of a branch; `ended` branches ask no more."""

    branch: int | None
    trials: int


def allowance(sweep: Sweep, modes: Sequence[str], history: Sequence[Told], spent: Sequence[bool]) -> Allowance:
    """The branch whose turn it is and how many trials its round still takes.

    Args: modes, of the branches in order; spent, whether a branch has nothing left to ask.
    """
    left = None if sweep.max_trials is None else sweep.max_trials - len(history)
    for branch, mode in enumerate(modes):
        own = [told for told in history if told.deployment.mode == mode]
        wanted = 0 if spent[branch] else _wanted(sweep, own)
        if wanted > 0:
            trials = wanted if left is None else min(wanted, left)
            return Allowance(branch, max(0, trials))
    return Allowance(None, 0)


def _wanted(sweep: Sweep, own: Sequence[Told]) -> int:
    """Trials that the present round of a branch still wants; 0 once the branch has ended."""
    rounds = results = trials = 0
    for told in own:
        trials += 1
        results += told.status == TrialStatus.FEASIBLE and not told.cache_hit
        if results == sweep.round_size:
            rounds, results, trials = rounds + 1, 0, 0
        elif trials >= TRIALS_PER_RESULT * sweep.round_size:
            return 0
    if rounds >= sweep.max_rounds:
        return 0
    return min(sweep.round_size - results, TRIALS_PER_RESULT * sweep.round_size - trials)
