"""Runs inside .venv: compares the locks with known vulnerabilities, without a network.

Usage: python -m launch.audit [--from DUMP]. DUMP is OSV's dump of PyPI (`all.zip`, or its unpacked folder); what it says
of the locked packages is kept in `advisories.json`, and each later run compares the locks with that. Exit code 1 for a
vulnerable package, and for one that the file does not know.

Source: https://ossf.github.io/osv-schema/ (affected versions and their evaluation).
"""

import argparse
import datetime
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from launch.folders import REPOSITORY

ADVISORIES = REPOSITORY / "advisories.json"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", re.MULTILINE)


def locked(folder: Path) -> dict[str, dict[str, str]]:
    """Version by package, by lock file."""
    return {
        path.name: {_plain(name): version for name, version in _PIN.findall(path.read_text())}
        for path in sorted(folder.glob("requirements*.lock"))
    }


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_dump(dump: Path) -> Iterator[dict[str, Any]]:
    """Every advisory of an OSV dump. Raises: OSError, ValueError for a dump that is none."""
    if dump.is_dir():
        yield from (json.loads(path.read_text()) for path in sorted(dump.rglob("*.json")))
        return
    with zipfile.ZipFile(dump) as archive:
        yield from (json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json"))


def snapshot(dump: Path, names: Sequence[str], accepted: dict[str, str]) -> dict[str, Any]:
    """What a dump says of the named packages. accepted: reason by advisory that is known and lived with."""
    packages: dict[str, list[Any]] = {name: [] for name in sorted(names)}
    newest, num_read = "", 0
    for advisory in read_dump(dump):
        newest, num_read = max(newest, advisory.get("modified", "")), num_read + 1
        if advisory.get("withdrawn"):
            continue
        for affected in advisory.get("affected", []):
            package = affected.get("package", {})
            if package.get("ecosystem") == "PyPI" and _plain(package["name"]) in packages:
                kept = {key: affected[key] for key in ("versions", "ranges") if key in affected}
                entry = {"id": advisory["id"], "aliases": advisory.get("aliases", []), **kept}
                packages[_plain(package["name"])].append({"summary": advisory.get("summary", ""), **entry})
    if not num_read:
        raise ValueError("holds no advisory")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"made": today, "newest_advisory": newest, "accepted": accepted, "packages": packages}


def is_affected(version: str, affected: dict[str, Any]) -> bool:
    """Whether a version is among those listed, or inside a range."""
    if version in affected.get("versions", []):
        return True
    return any(
        _is_inside(Version(version), each["events"])
        for each in affected.get("ranges", [])
        if each["type"] == "ECOSYSTEM"
    )


def _is_inside(version: Version, events: Sequence[dict[str, str]]) -> bool:
    marks = sorted((_mark(text), kind) for event in events for kind, text in event.items() if kind != "limit")
    inside = False
    for mark, kind in marks:
        if kind == "introduced" and version >= mark:
            inside = True
        elif (kind == "fixed" and version >= mark) or (kind == "last_affected" and version > mark):
            inside = False
    return inside


def _mark(text: str) -> Version:
    try:
        return Version("0.dev0" if text == "0" else text)
    except InvalidVersion:
        return Version("0.dev0")  # cannot be compared: rather one false alarm than a hole


def faults(locks: dict[str, dict[str, str]], known: dict[str, Any]) -> list[str]:
    """One line per locked package that is vulnerable, or that the snapshot does not know."""
    found = []
    for lock, pins in locks.items():
        for name, version in pins.items():
            if name not in known["packages"]:
                found.append(f"{lock}: {name} is not in {ADVISORIES.name}; make it anew: run.py audit --from DUMP")
            for each in known["packages"].get(name, []):
                if each["id"] not in known["accepted"] and is_affected(version, each):
                    ids = ", ".join([each["id"], *each["aliases"]])
                    found.append(f"{lock}: {name} {version}: {ids}: {each['summary']}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Take a dump in, if one is given, and compare; the exit code."""
    parser = argparse.ArgumentParser(prog="run.py audit", description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="dump", type=Path, help="OSV's dump of PyPI: all.zip, or its folder")
    dump = parser.parse_args(words).dump
    locks = locked(REPOSITORY)
    known = json.loads(ADVISORIES.read_text()) if ADVISORIES.exists() else None
    if dump is not None:
        names = sorted({name for pins in locks.values() for name in pins})
        try:
            known = snapshot(dump, names, known["accepted"] if known else {})
        except (OSError, ValueError, zipfile.BadZipFile) as fault:
            print(f"{dump} is not OSV's dump of PyPI: {fault}")
            return 1
        ADVISORIES.write_text(json.dumps(known, indent=1) + "\n")
    if known is None:
        print(f"not audited: there is no {ADVISORIES.name}; make it with run.py audit --from DUMP")
        return 1
    found = faults(locks, known)
    num_packages = len({name for pins in locks.values() for name in pins})
    print(
        "\n".join(found or [f"{num_packages} locked packages, no known vulnerability as of {known['newest_advisory']}"])
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
