"""Configuration to plan: what a study will search, what it leaves out and why, and what it would take.

Pure: no clock, no database. Capacities are memoised in the process and on disk, so a second plan of a model is fast.
"""

from app.schemas.plan import BranchPlan, BudgetPlan, ExcludedPlan, KnobPlan, Plan, PoolPlan
from app.schemas.study import SmartSearchConfig
from app.schemas.sweep import MAX_TRIALS
from workers.search.cost import trial_seconds
from workers.search.facts import Facts
from workers.search.forecasts import chosen_predictors, predictor_fields
from workers.search.knobs import ROLES, distinct
from workers.search.outlook import nearest, problem, warnings
from workers.search.room import TraceSummary, capacities, requests_over_context, resolved_load, trace_sums
from workers.search.sieve import Excluded
from workers.search.space import Branch, Space
from workers.search.study_space import catalog_facts, check_policies, study_space
from workers.timing import perf_data
from workers.traffic.workload import TraceFile


def plan(config: SmartSearchConfig, trace: TraceSummary | None = None, content: TraceFile | None = None) -> Plan:
    """The plan of a configuration.

    Args: trace, the summary of the stored trace that the workload names, if it names one; content, that trace itself:
    without it the load predictors of throughput scaling are left open.
    Raises: InvalidRequestError for a pool too large to hold, or if no scaling policy is left.
    """
    check_policies(config)
    predictors = chosen_predictors(config, content)
    space = study_space(config, predictor_fields(predictors))
    return plan_of(space, catalog_facts(config), trace).model_copy(update={"load_predictors": predictors})


def plan_of(space: Space, facts: Facts, trace: TraceSummary | None = None) -> Plan:
    """The plan of a space already built."""
    config = space.config
    capacity = capacities(space, facts)
    load = resolved_load(space, capacity, trace)
    context = requests_over_context(config, facts, load, trace)
    budget = _budget(space)
    near = None if space.size else nearest(space, facts)
    return Plan(
        branches=[_branch(branch) for branch in space.branches],
        excluded=[_excluded(each) for each in space.excluded],
        kv_capacity=capacity,
        load=load,
        context=context,
        trace=trace_sums(trace, context),
        combinations=space.size,
        continuous=config.workload.kv_load_range is not None,
        algorithm=config.sweep.algorithm,
        budget=budget,
        estimated_seconds=round(budget.expected_trials * trial_seconds(space, load), 3),
        warnings=warnings(space, context, capacity, trace),
        perf_data=dict(perf_data.provenance(config.search_space.hardware_sku, _backends(config))),
        nearest=near,
        problem=None if near is None else problem(space, near),
    )


def _backends(config: SmartSearchConfig) -> list[str]:
    return list(distinct(config.search_space.backend))


def _branch(branch: Branch) -> BranchPlan:
    knobs = [KnobPlan(name="backend", values=[s.backend for s in branch.sizes if s.perf_data])]
    for place, role in enumerate(ROLES[branch.mode]):
        limits = [each[place] for each in branch.batching]
        knobs += [
            KnobPlan(name=f"{role}_{name}", values=list(distinct(getattr(one, name) for one in limits)))
            for name in ("max_num_batched_tokens", "max_num_seqs")
        ]
    knobs.append(KnobPlan(name="router", values=[router.model_dump(exclude_none=True) for router in branch.routers]))
    knobs.append(KnobPlan(name="planner", values=[planner or "disabled" for planner in branch.planners]))
    if branch.loads != (None,):
        knobs.append(KnobPlan(name="kv_load_ratio", values=list(branch.loads)))
    return BranchPlan(
        mode=branch.mode,
        pool_size=len(branch.entries),
        pools=[
            PoolPlan(
                backend=size.backend,
                enumerated=size.enumerated,
                backend_rules=size.backend_rules,
                kv_capacity=size.kv_capacity,
                perf_data=size.perf_data,
            )
            for size in branch.sizes
        ],
        knobs=knobs,
        combinations=branch.size,
    )


def _excluded(each: Excluded) -> ExcludedPlan:
    return ExcludedPlan(
        backend=each.backend,
        shape=each.shape,
        gpus=each.shape.gpus if each.shape else None,
        code=each.code,
        detail=each.detail,
        numbers=dict(each.numbers),
    )


def _budget(space: Space) -> BudgetPlan:
    sweep, total = space.config.sweep, space.size
    if sweep.whole_space:
        return BudgetPlan(
            whole_space=True,
            max_rounds=None,
            round_size=None,
            max_trials=None,
            expected_trials=min(total, MAX_TRIALS),
        )
    planned = len(space.branches) * sweep.max_rounds * sweep.round_size
    if space.config.workload.kv_load_range is None:
        planned = min(planned, total)
    return BudgetPlan(
        whole_space=False,
        max_rounds=sweep.max_rounds,
        round_size=sweep.round_size,
        max_trials=sweep.max_trials,
        expected_trials=min(planned, sweep.max_trials or MAX_TRIALS, MAX_TRIALS),
    )
