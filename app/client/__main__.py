"""The command `spica`: submit studies, follow them, read what they found.

SPICA_URL names the service (http://127.0.0.1:8000 by default), SPICA_API_KEY holds the key, if one is needed.

exit codes: 0 done; 1 the study failed, was cancelled, or is worse than asked for; 2 the command line is wrong;
3 the service cannot be reached or is out of order; 4 the service refuses; 5 the study has not ended in time;
130 interrupted
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args
from uuid import UUID

import httpx

from app.client.api import Client, Format, LateError, RefusedError, UnreachableError, View
from app.client.progress import ProgressBar, summary, table
from app.schemas.study_view import StudyView

OK, WORSE, USAGE, UNREACHABLE, REFUSED, LATE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
DEFAULT_URL = "http://127.0.0.1:8000"
MEDIA_TYPES = {".json": "application/json", ".yaml": "application/yaml", ".yml": "application/yaml"}
REGRESSION = "urn:spica:problem:regression"
Arguments = argparse.Namespace
Command = Callable[[Client, Arguments], int]


def submit(client: Client, given: Arguments) -> int:
    """Submit a configuration; prints the study's id, with --dry-run the plan."""
    config, media_type = given.file.read_bytes(), MEDIA_TYPES[given.file.suffix.lower()]
    if given.dry_run:
        plan = client.plan_of(config, media_type, trace=given.trace)
        print(json.dumps(plan, indent=2))
        return WORSE if plan["problem"] else OK
    study = client.submit(config, media_type, trace=given.trace, idempotency_key=given.idempotency_key)
    print(study.id, flush=True)
    for warned in study.warnings:
        _say(f"warning: {warned.pointer}: {warned.detail}")
    if not (given.wait or given.fail_below is not None or given.baseline):
        return OK
    code = _verdict(client.follow(study.id, ProgressBar().show, given.timeout))
    return code or _gate(client, client.study(study.id), given)


def watch(client: Client, given: Arguments) -> int:
    """Follow a study with a progress bar until it ends."""
    return _verdict(client.follow(given.study, ProgressBar().show, given.timeout))


def show(client: Client, given: Arguments) -> int:
    """Show a study and its first candidates."""
    study = client.study(given.study)
    if given.json:
        print(study.model_dump_json(indent=2))
        return OK
    print(summary(study))
    if study.best is not None:
        print(table(client.candidates(study.id, limit=given.limit).items))
    return OK


def candidates(client: Client, given: Arguments) -> int:
    """List candidates, best first: a table, or every column of all of them as CSV."""
    if given.csv:
        for part in client.candidates_csv(given.study, view=given.view, fields=given.fields):
            sys.stdout.write(part)
        return OK
    print(table(client.candidates(given.study, view=given.view, limit=given.limit).items))
    return OK


def deployment(client: Client, given: Arguments) -> int:
    """Print how to run a candidate for real; the best one unless another is named."""
    candidate_id = given.candidate
    if candidate_id is None:
        best = client.study(given.study).best
        if best is None:
            _say("the study has no candidate")
            return WORSE
        candidate_id = best.candidate_id
    sys.stdout.write(client.deployment(given.study, candidate_id, given.format))
    return OK


def cancel(client: Client, given: Arguments) -> int:
    """Ask a study to stop; what it has found stays."""
    study = client.cancel(given.study)
    _say(f"study {study.id} is {study.status}, asked to stop")
    return OK


def _verdict(study: StudyView) -> int:
    """The exit code of an ended study, with its reason on standard error."""
    if study.status == "succeeded":
        return OK
    reason = f": {study.problem.title}: {study.problem.detail}" if study.problem else ""
    _say(f"study {study.id} {study.status}{reason}")
    return WORSE


def _gate(client: Client, study: StudyView, given: Arguments) -> int:
    """The exit code of a study that succeeded, under the conditions of the command line."""
    if given.fail_below is not None:
        score = study.best.score if study.best else None
        if score is None or score < given.fail_below:
            _say(f"the best score is {'none' if score is None else f'{score:g}'}, below {given.fail_below:g}")
            return WORSE
    if given.baseline:
        try:
            client.compare(study.id, given.baseline, given.tolerance)
        except RefusedError as refused:
            if refused.problem.type != REGRESSION:
                raise
            _say(str(refused))
            return WORSE
    return OK


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="spica", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--url", default=os.environ.get("SPICA_URL") or DEFAULT_URL, help="instead of SPICA_URL")
    commands = top.add_subparsers(required=True, metavar="command")
    _add_submit(_command(commands, submit))
    for command in (watch, show, candidates, deployment, cancel):
        one = _command(commands, command)
        one.add_argument("study", type=UUID, help="id of the study")
        if command is watch:
            _add_timeout(one)
        if command in (show, candidates):
            one.add_argument("--limit", type=int, default=10, help="rows of the table (10)")
        if command is show:
            one.add_argument("--json", action="store_true", help="the whole study as JSON")
        if command is candidates:
            one.add_argument("--csv", action="store_true", help="all of them, every column")
            one.add_argument("--fields", help="columns of the CSV, separated by commas")
            one.add_argument("--view", choices=get_args(View), default="ranked")
        if command is deployment:
            one.add_argument("candidate", nargs="?", type=UUID, help="id of the candidate (the best one)")
            one.add_argument("--format", choices=get_args(Format), default="dynamo")
    return top


def _command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", run: Command) -> argparse.ArgumentParser:
    one = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__)
    one.set_defaults(run=run)
    return one


def _add_submit(one: argparse.ArgumentParser) -> None:
    one.add_argument("file", type=_config_file, help="the configuration, .json, .yaml or .yml")
    one.add_argument("--trace", type=_file, help="a trace to replay, sent along")
    one.add_argument("--wait", action="store_true", help="until the study has ended")
    one.add_argument("--fail-below", type=float, metavar="SCORE", help="wait; exit 1 if the best score is lower")
    one.add_argument("--baseline", type=UUID, metavar="ID", help="wait; exit 1 if worse than that study")
    one.add_argument("--tolerance", type=float, default=0.0, help="part of the baseline that may be lost (0)")
    one.add_argument("--idempotency-key", metavar="K", help="the same key and file give the same study")
    one.add_argument("--dry-run", action="store_true", help="only plan; print the plan")
    _add_timeout(one)


def _add_timeout(one: argparse.ArgumentParser) -> None:
    one.add_argument("--timeout", type=float, default=3600.0, metavar="S", help="seconds to wait at most (3600)")


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file")
    return path


def _config_file(text: str) -> Path:
    path = _file(text)
    if path.suffix.lower() not in MEDIA_TYPES:
        raise argparse.ArgumentTypeError(f"{text} ends with none of {', '.join(MEDIA_TYPES)}")
    return path


def main(words: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    given = parser().parse_args(words)
    try:
        with Client(given.url, os.environ.get("SPICA_API_KEY")) as client:
            code: int = given.run(client, given)
            return code
    except RefusedError as refused:
        _say("\n".join(refused.lines()))
        return REFUSED
    except UnreachableError as error:
        _say(f"cannot reach the service: {error}")
        return UNREACHABLE
    except LateError as error:
        _say(str(error))
        return LATE
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        _say(f"not the address of a service: {given.url}: {error}")
        return USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
