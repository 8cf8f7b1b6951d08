"""How functions of this package are compiled, and where the compiled code is kept.

numba keeps compiled code per file and does not notice when a function that was inlined from another file has changed.
The directory is therefore named after all sources that compiled code can come from: the modules that import this one and
whatever they import. Any change there compiles anew, nothing stale is ever loaded. The name
depends on what the sources say and not on where they lie, so that a second clone, a container layer or another host with
the same kind of core may use it. It is `kernels` in the cache folder (SPICA_CACHE_DIR), unless NUMBA_CACHE_DIR names another.
"""

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba.core.caching import UserProvidedCacheLocator

from workers.replay.inner_code import OPTIONS, InnerCompiler
from workers.replay.kernel_process import AGGREGATED, DISAGGREGATED, have_compiled
from workers.replay.tables import IS_CHECKED
from workers.timing import disk_cache

_ROOT = Path(__file__).parents[2]
_IMPORT = re.compile(r"^from (workers[.\w]*) import ([^(\n]*)", re.MULTILINE)
VERSIONS_KEPT = 4

_compiles_here = threading.Event()


class KernelCacheLocator(UserProvidedCacheLocator):
    """Compiled code by module: numba's own locator keeps it by the absolute path of the source."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file: str) -> str:
        """Name of the folder below the cache directory."""
        return os.path.relpath(Path(py_file).parent, _ROOT).replace(os.sep, ".")


def compiled_sources(root: Path) -> list[Path]:
    """The modules that import this one and, transitively, the modules of `workers` that they import; sorted."""
    marker = "from workers.replay.compiled import"
    waiting = [path for path in (root / "workers" / "replay").rglob("*.py") if marker in path.read_text()]
    found: set[Path] = set()
    while waiting:
        source = waiting.pop()
        if source not in found:
            found.add(source)
            waiting += [path for path in _imported(root, source.read_text()) if path.exists()]
    return sorted(found)


def _imported(root: Path, text: str) -> Iterator[Path]:
    for package, names in _IMPORT.findall(text):
        folder = root.joinpath(*package.split("."))
        yield folder.with_suffix(".py")
        yield from (folder / f"{name.split()[0]}.py" for name in names.split(",") if name.strip())


def cache_directory(root: Path, parent: Path) -> Path:
    """The folder for these very sources; at most VERSIONS_KEPT folders, the last used, stay below `parent`."""
    core = f"{llvmlite.binding.get_host_cpu_name()} {llvmlite.binding.get_host_cpu_features().flatten()}"
    digest = hashlib.sha256(f"{numba.__version__} {IS_CHECKED} {core}".encode())
    for source in compiled_sources(root):
        digest.update(source.relative_to(root).as_posix().encode() + b"\0" + source.read_bytes() + b"\0")
    directory = parent / digest.hexdigest()[:16]
    with contextlib.suppress(
        OSError
    ):  # a cache that cannot be written is still read; numba says so if it cannot be used
        directory.mkdir(parents=True, exist_ok=True)
        os.utime(directory)
        for stale in sorted(parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-VERSIONS_KEPT]:
            shutil.rmtree(stale, ignore_errors=True)
    return directory


def compile_once(function: Any, *arguments: object) -> None:
    """Have an entry ready for arguments of these types: loaded, after another process has compiled it if need be.

    A process that compiled it itself would keep the compiler's memory, several times its own.
    """
    if function.signatures:
        return
    prepare(DISAGGREGATED if ".handoff" in function.__module__ else AGGREGATED)
    function.compile(tuple(numba.typeof(argument) for argument in arguments))  # type: ignore[no-untyped-call]


def prepare(loop: str = AGGREGATED) -> None:
    """Have a loop, and what replays with it take, on disk. If that fails, this process compiles what it comes to."""
    folder = Path(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
    if not _compiles_here.is_set() and not have_compiled(folder, loop):
        compile_here()


def compile_here() -> None:
    """From now on this process compiles what is not on disk."""
    _compiles_here.set()


def _parent() -> Path:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    kept = disk_cache.folder() or Path(tempfile.gettempdir())
    return Path(chosen) if chosen else kept / "kernels"


# The kernel is many small functions: as one large one it needs no calls and reads fewer values twice, a third of its time.
llvmlite.binding.set_option("spica-studies", "-inline-threshold=4000")

_njit: Any = numba.njit  # its stubs know neither the option `_nrt` nor functions without annotations
numba.config.CACHE_DIR = str(cache_directory(_ROOT, _parent()))  # type: ignore[attr-defined]
numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelCacheLocator.__name__}"  # type: ignore[attr-defined]

_Decorator = Callable[[Callable[..., Any]], Any]
_COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_INNER: dict[str, Any] = {"pipeline_class": InnerCompiler, **OPTIONS}

entry: _Decorator = _njit(cache=True, **_COMMON)
"""For functions that Python calls: compiled code is kept on disk."""

bare_entry: _Decorator = _njit(cache=True, _nrt=False, **_COMMON)
"""As `entry`, for functions that allocate nothing; see `inner`."""

allocating: _Decorator = _njit(**_INNER, **_COMMON)
"""For functions that compiled functions call and that make arrays of their own."""

summing: _Decorator = _njit(_nrt=False, fastmath={"reassoc", "nnan", "nsz"}, **_INNER, **_COMMON)
"""As `inner`, for loops over numbers (never NaN) that may be added up in any fixed order, several at once."""

inner: _Decorator = _njit(_nrt=False, **_INNER, **_COMMON)
"""For functions that compiled functions call. They allocate nothing, so no reference counts are kept: counting the
arrays of the address book took most of the time."""
