"""Google Vizier's GP bandit, in a process of its own: a question on standard input, suggestions on standard output.

Run by its path with the interpreter that has the extra `vizier`; it imports nothing of this project, since that
interpreter has nothing else of ours. The designer is built anew for every question and fed the whole history, and its
random numbers depend on the question's seed alone, so a question asked twice has one answer.

Question: {"seed": int, "count": int, "objectives": [str], "parameters": [{"name", "kind", "values" | "low", "high",
"default", "log"}], "trials": [{"values": {name: value}, "gains": [float] | null}]}; gains null: infeasible.
Answer: {"suggestions": [{name: value}]}.
"""

import ctypes
import json
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1


def _die_with_parent(parent: int) -> None:
    """A suggestion takes minutes: it must not outlive the worker that asked for it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _problem(question: Mapping[str, Any]) -> Any:
    from vizier import pyvizier as vz

    problem = vz.ProblemStatement()
    root = problem.search_space.root
    for each in question["parameters"]:
        scale = vz.ScaleType.LOG if each.get("log") else vz.ScaleType.LINEAR
        name, default = each["name"], each["default"]
        if each["kind"] == "categorical":
            root.add_categorical_param(name, each["values"], default_value=default)
        elif each["kind"] == "discrete":
            root.add_discrete_param(name, each["values"], default_value=default, scale_type=scale, auto_cast=False)
        else:
            root.add_float_param(name, each["low"], each["high"], default_value=default)
    for name in question["objectives"]:
        problem.metric_information.append(vz.MetricInformation(name, goal=vz.ObjectiveMetricGoal.MAXIMIZE))
    return problem


def _trial(number: int, told: Mapping[str, Any], objectives: Sequence[str]) -> Any:
    from vizier import pyvizier as vz

    trial = vz.Trial(id=number, parameters=dict(told["values"]))
    if told["gains"] is None:
        return trial.complete(vz.Measurement(), infeasibility_reason="infeasible")
    return trial.complete(vz.Measurement(metrics=dict(zip(objectives, told["gains"], strict=True))))


def suggest(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Values by parameter name, `count` times."""
    import jax

    # In single precision the fit of a history with infeasible trials gives no numbers at all, now and then.
    jax.config.update("jax_enable_x64", True)
    from vizier import algorithms
    from vizier._src.algorithms.designers.gp_ucb_pe import VizierGPUCBPEBandit

    designer = VizierGPUCBPEBandit(_problem(question), rng=jax.random.PRNGKey(question["seed"]))
    trials = [_trial(n, told, question["objectives"]) for n, told in enumerate(question["trials"], start=1)]
    designer.update(algorithms.CompletedTrials(trials), algorithms.ActiveTrials([]))
    draw = random.Random(question["seed"])
    return [
        _whole(each.parameters.as_dict(), question["parameters"], draw) for each in designer.suggest(question["count"])
    ]


def _whole(values: dict[str, Any], parameters: Sequence[Mapping[str, Any]], draw: random.Random) -> dict[str, Any]:
    """The suggestion with a random value wherever the fit gave none."""
    for each in parameters:
        if each["name"] not in values:
            drawn = draw.choice(each["values"]) if "values" in each else draw.uniform(each["low"], each["high"])
            values[each["name"]] = drawn
    return values


def main() -> None:
    """Answer one question. Whatever the libraries print goes to standard error."""
    _die_with_parent(int(sys.argv[1]))
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump({"suggestions": suggest(json.load(sys.stdin))}, answer)
    answer.close()


if __name__ == "__main__":
    main()
