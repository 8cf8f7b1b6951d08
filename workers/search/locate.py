"""From a deployment back to its place in the space, so that history can be told from what is left."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.schemas.deployment import Deployment, RoleDeployment
from workers.search.history import Told
from workers.search.knobs import ROLES, Batching
from workers.search.shapes import RoleConfig
from workers.search.space import Branch, Space

Place = tuple[int, int]
"""Branch, and the candidate's number in it without its load."""


class Locator:
    """Finds candidates of one space; builds its tables once."""

    def __init__(self, space: Space) -> None:
        self._branches = {branch.mode: (number, _Tables(branch)) for number, branch in enumerate(space.branches)}
        self._known: list[tuple[Told, Place | None]] = []

    def places(self, history: Sequence[Told]) -> list[Place | None]:
        """The place of every trial. A history that grows from round to round is not looked up anew.

        Remembering is safe: an entry counts only for the very same object, which it keeps alive.
        """
        known = self._known
        for index, told in enumerate(history):
            if index == len(known):
                known.append((told, self.place(told.deployment)))
            elif known[index][0] is not told:
                known[index] = (told, self.place(told.deployment))
        return [place for _, place in known[: len(history)]]

    def place(self, deployment: Deployment) -> Place | None:
        """Where the deployment stands; None if it is not of the space (a client's baseline, say)."""
        number, tables = self._branches.get(deployment.mode, (-1, None))
        index = tables.index(deployment) if tables is not None else None
        return None if index is None else (number, index)


class _Tables:
    def __init__(self, branch: Branch) -> None:
        self._branch = branch
        self._roles = {role: index for index, role in enumerate(branch.roles)}
        self._entry_keys, self._entry_order = _sorted(branch.entries, len(branch.roles))
        self._cell_keys, self._cell_order = _sorted(branch.cells, len(branch.backends))
        self._backends = {backend: index for index, backend in enumerate(branch.backends)}
        self._batching = {limits: index for index, limits in enumerate(branch.batching)}
        self._routers = {router: index for index, router in enumerate(branch.routers)}
        self._planners = {_text(planner): index for index, planner in enumerate(branch.planners)}

    def index(self, deployment: Deployment) -> int | None:
        pools = [deployment.roles[role] for role in ROLES[self._branch.mode]]
        limits = tuple(Batching(pool.max_num_batched_tokens, pool.max_num_seqs) for pool in pools)
        roles = [self._roles.get(_config(pool), -1) for pool in pools]
        digits = (
            self._batching.get(limits),
            self._routers.get(deployment.router),
            self._planners.get(_text(deployment.planner)),
        )
        backend = self._backends.get(deployment.backend)
        if backend is None or min(roles) < 0 or None in digits:
            return None
        entry = _find(self._entry_keys, self._entry_order, roles, len(self._branch.roles))
        cell = _find(self._cell_keys, self._cell_order, [entry, backend], len(self._branch.backends))
        if entry < 0 or cell < 0:
            return None
        index = cell
        for digit, count in zip(digits, self._branch.radix[1:4], strict=True):
            index = index * count + (digit or 0)
        return index


def _config(pool: RoleDeployment) -> RoleConfig:
    return RoleConfig.of(pool.shape, pool.replicas)


def _text(planner: dict[str, Any] | None) -> str:
    return json.dumps(planner, sort_keys=True)


def _sorted(rows: NDArray[np.int32], base: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    keys = np.zeros(len(rows), dtype=np.int64)
    for column in range(rows.shape[1]):
        keys = keys * base + rows[:, column]
    order = np.argsort(keys, kind="stable")
    return keys[order], order


def _find(keys: NDArray[np.int64], order: NDArray[np.int64], digits: list[int], base: int) -> int:
    wanted = 0
    for digit in digits:
        wanted = wanted * base + digit
    at = int(np.searchsorted(keys, wanted))
    return int(order[at]) if at < len(keys) and keys[at] == wanted else -1
