"""Which performance-data package answers, and what a result rests on: package, version, backend data version.

Two packages carry the same interface; the setting `SPICA_PERF_DATA` names one, otherwise the first installed wins:
`aisimulate_core` (wheel `aisimulate`, newer data) or `aiconfigurator_core` (wheel `aiconfigurator-core`). Nothing
here reaches the network: a model is looked up only if its configuration ships inside the package, because the
package would otherwise download it, and a name that happens to be a local folder would be read from disk.
"""

import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from types import ModuleType

from app.catalog import snapshot
from app.schemas.status import ReasonCode
from workers.errors import UnsupportedError

SETTING = "SPICA_PERF_DATA"
_DISTRIBUTIONS = {"aisimulate_core": "aisimulate", "aiconfigurator_core": "aiconfigurator-core"}
_NO_DATA_ERRORS = frozenset(
    {
        "PerfDataNotAvailableError",
        "InterpolationDataNotAvailableError",
        "MissingSystemFlopsError",
        "EmpiricalNotImplementedError",
        "SolNotImplementedError",
        "UnlistedQueryVersionError",
    }
)
_INSTALL_PATH = re.compile(r"\s+(?:at|from|in)\s+/\S+|(?<=[\s'\"(])/\S*site-packages\S*")


@dataclass(frozen=True, slots=True)
class PerfDataPackage:
    """The package in use. `module` is its import name, `distribution` its wheel, `version` the wheel's version."""

    module: str
    distribution: str
    version: str

    def load(self, name: str = "") -> ModuleType:
        """Import a submodule of the package, or the package itself (heavy: 0.05 to 0.5 s the first time)."""
        _silence(self.module)
        return importlib.import_module(f"{self.module}.{name}" if name else self.module)


def _silence(module: str) -> None:
    # The package reports each data file it substitutes as a log warning; a worker would print thousands.
    logging.getLogger(module).setLevel(logging.ERROR)


@cache
def package() -> PerfDataPackage:
    """The package to use, from `SPICA_PERF_DATA` or by what is installed.

    Raises: UnsupportedError(NO_PERF_DATA) if the named package, or every known one, is missing.
    """
    wanted = os.environ.get(SETTING, "")
    for module in [wanted] if wanted else list(_DISTRIBUTIONS):
        distribution = _DISTRIBUTIONS.get(module)
        if distribution is not None and importlib.util.find_spec(module) is not None:
            return PerfDataPackage(module, distribution, metadata.version(distribution))
    names = wanted or " or ".join(_DISTRIBUTIONS)
    raise UnsupportedError(ReasonCode.NO_PERF_DATA, f"performance data package {names} is not installed")


def _is_snapshot_package(used: PerfDataPackage) -> bool:
    return (used.distribution, used.version) == snapshot.PACKAGE


@cache
def data_version(hardware: str, backend: str) -> str:
    """The backend data version the package answers with by default, e.g. "0.24.0".

    Taken from the committed catalog when that describes the installed package (asking the package takes 0.4 to 0.9 s).

    Raises: UnsupportedError(NO_PERF_DATA) if the package has no data for the pair.
    """
    used = package()
    version: str | None
    if _is_snapshot_package(used):
        version = snapshot.data_version(hardware, backend)
    else:
        version = used.load("sdk.perf_database").get_latest_database_version(hardware, backend)
    if version is None:
        raise UnsupportedError(ReasonCode.NO_PERF_DATA, f"no performance data for {backend} on {hardware}")
    return version


@cache
def bundled_models() -> frozenset[str]:
    """Models whose configuration ships with the package; any other name would be downloaded by it."""
    used = package()
    if _is_snapshot_package(used):
        return frozenset(snapshot.MODELS)
    return frozenset(used.load("sdk.common").DefaultHFModels)


def require_model(model: str) -> None:
    """Raises: UnsupportedError(NO_PERF_DATA) unless the package ships this model's configuration."""
    if model not in bundled_models():
        raise UnsupportedError(ReasonCode.NO_PERF_DATA, f"no performance data for model {model}")


def gpu_memory_bytes(hardware: str) -> int:
    """Memory of one GPU of a known hardware name."""
    used = package()
    if _is_snapshot_package(used):
        return snapshot.HARDWARE[hardware].memory_bytes
    return int(used.load("sdk.perf_database").load_system_spec(hardware)["gpu"]["mem_capacity"])


def provenance(hardware: str, backends: list[str]) -> Mapping[str, object]:
    """What step times and capacities rest on: package, version and data version per backend (None: no data)."""
    used = package()
    versions: dict[str, str | None] = {}
    for backend in backends:
        try:
            versions[backend] = data_version(hardware, backend)
        except UnsupportedError:
            versions[backend] = None
    return {"package": used.distribution, "version": used.version, "hardware": hardware, "backends": versions}


def unsupported(error: Exception) -> UnsupportedError:
    """Translate an error of the package: missing measurements become NO_PERF_DATA, all else BACKEND_CANNOT_RUN_SHAPE.

    The package refuses by many kinds of error (ValueError, AssertionError on heads that do not divide, KeyError on a
    field that a model lacks), so the kind decides nothing more. Machine paths are cut out of the sentence.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    missing = any(type(link).__name__ in _NO_DATA_ERRORS for link in chain)
    code = ReasonCode.NO_PERF_DATA if missing else ReasonCode.BACKEND_CANNOT_RUN_SHAPE
    said = _INSTALL_PATH.sub("", str(error)).strip()
    return UnsupportedError(code, said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}")
