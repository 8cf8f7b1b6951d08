"""Where state lives: data that stays, data of one run, and files that user nobody must reach."""

import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

from launch.process import LaunchError

REPOSITORY = Path(__file__).resolve().parent.parent
RUN_PREFIX = "spica-run-"
ROOT_STATE = Path("/var/lib/spica-studies")


def reachable_by_nobody(path: Path) -> bool:
    """True when every existing folder on the way to `path`, and itself, may be entered by any user."""
    existing = [folder for folder in (path, *path.parents) if folder.exists()]
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in existing)


def data_folder() -> Path:
    """DATA_DIR, else `.data` in the repository, else (root, repository in a closed home) a folder under /var/lib."""
    given = os.environ.get("DATA_DIR")
    folder = Path(given).resolve() if given else REPOSITORY / ".data"
    if os.geteuid() == 0 and not reachable_by_nobody(folder):
        if given:
            raise LaunchError(
                f"DATA_DIR={given}: as root, Postgres runs as user nobody, who cannot enter that folder; choose another"
            )
        folder = ROOT_STATE / hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:12]
    return folder


def open_data_folder(folder: Path) -> IO[str]:
    """Make `folder` and take its lock, held until the returned file is closed or this process dies.

    Raises: LaunchError when another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH)  # ours, not the user's: nobody must get through
    lock = (folder / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise LaunchError(f"{folder} is in use by another run; give this one its own DATA_DIR") from None
    return lock


def new_run_folder() -> Path:
    """A fresh temporary folder; also removes those that killed runs left behind."""
    parent = Path(tempfile.gettempdir())
    if os.geteuid() == 0 and not reachable_by_nobody(parent):
        parent = Path("/tmp")
    for old in parent.glob(f"{RUN_PREFIX}*"):
        remove_if_abandoned(old)
    return Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir=parent))


def remove_if_abandoned(folder: Path) -> None:
    """Delete a run folder of ours whose lock nobody holds; one without a lock file is just being made."""
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or not (folder / "lock").exists():
        return
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder, ignore_errors=True)


def server_folder(parent: Path, name: str) -> Path:
    """`parent/name` for a server's files, owned by the user the server will run as."""
    folder = parent / name
    if not folder.exists():
        folder.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return folder


def reachable_copy(package: Path, siblings: list[Path], version: str) -> Path:
    """`package` itself, or, for root with a closed folder on the way, a copy that user nobody can execute.

    siblings: shared libraries found by relative path, so they are copied in the same layout. Never changes modes of
    folders that are not ours. Raises: OSError when the copy cannot be made.
    """
    if os.geteuid() != 0 or reachable_by_nobody(package):
        return package
    target = ROOT_STATE / "bin" / f"{package.name}-{version}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=target.parent))
        for source in (package, *siblings):
            shutil.copytree(source, fresh / source.name)
        fresh.chmod(0o755)
        try:
            fresh.rename(target)
        except OSError:  # another run was faster
            shutil.rmtree(fresh)
    return target / package.name
