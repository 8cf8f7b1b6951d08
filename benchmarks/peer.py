"""The peer simulator for comparisons: installed on demand into a folder of its own, run as its users run it."""

import json
import subprocess
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent
REQUIREMENT = "aisimulate==0.13.0.dev202610270000000085"
_FOLDER = REPOSITORY / ".cache" / "peer"
_INSTALL_WITHIN_S, _RUN_WITHIN_S = 600.0, 1200.0


def installed() -> Path:
    """The peer's command; its whole dependency list (1.5 GB) is installed the first time. Raises: CalledProcessError."""
    command, mark = _FOLDER / "bin" / "aisimulate", _FOLDER / REQUIREMENT
    if not mark.exists():
        venv.EnvBuilder(with_pip=True, clear=True).create(_FOLDER)
        pip = [str(_FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:", REQUIREMENT]
        subprocess.run(pip, check=True, timeout=_INSTALL_WITHIN_S)
        mark.touch()
    return command


def predict_ms(peer: Path, config: Mapping[str, Any]) -> float:
    """Milliseconds that the peer says its simulation took, start-up and loading not counted.

    Raises: CalledProcessError when it fails, TimeoutExpired.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        argv = [str(peer), "predict", "--config", str(path), "--output-dir", f"{folder}/out", "--format", "json"]
        subprocess.run(argv, check=True, capture_output=True, timeout=_RUN_WITHIN_S)
        report = json.loads((Path(folder) / "out" / "prediction.json").read_text())
    summary = report.get("summary")
    return float((summary if isinstance(summary, dict) else report)["wall_time_ms"])
