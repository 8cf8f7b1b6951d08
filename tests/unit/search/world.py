"""A small world for search tests: invented capacities and step times, and the plain replay as the judge."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.catalog import snapshot
from app.schemas.deployment import Deployment, ParallelShape, RoleDeployment
from app.schemas.status import ReasonCode, TrialStatus
from app.schemas.study import SmartSearchConfig
from tests.reference.plain_replay import replay
from workers.errors import InfeasibleError
from workers.replay.fleet import Fleet, KvRouter, Pool
from workers.replay.metrics import Metric, Sla, report
from workers.search import candidate
from workers.search.history import Coverage, Told
from workers.search.outline import outline
from workers.search.score import Scored, objectives, score
from workers.search.search import Prepared, Search
from workers.search.space import build_space
from workers.traffic.load_shape import load_shape
from workers.traffic.requests import RequestBatch
from workers.traffic.workload import workload_batch

MODEL, SKU = "Qwen/Qwen3-32B-FP8", "h200_sxm"


@dataclass(frozen=True)
class WorldFacts:
    """Capacities that grow with the GPUs of an engine and shrink with the token limit."""

    is_moe: bool = False
    max_context_tokens: int = 600
    tokens_per_gpu: int = 900

    def kv_tokens(
        self, backend: str, shape: ParallelShape, max_num_batched_tokens: int, max_num_seqs: int, memory_fraction: float
    ) -> int:
        del max_num_seqs, backend
        tokens = int(self.tokens_per_gpu * shape.gpus * memory_fraction) - max_num_batched_tokens // 128
        if tokens <= 0:
            raise InfeasibleError(ReasonCode.NO_KV_BUDGET, "nothing is left", {"short_gib": 1.0})
        return tokens

    def has_data(self, backend: str, shape: ParallelShape) -> bool:
        del backend, shape
        return True

    def data_version(self, backend: str) -> str | None:
        return None if backend == "trtllm" else "1"


@dataclass
class WorldTimes:
    """Passes get shorter with tp, never in proportion; every question asked is counted."""

    tp: int
    asked: int = field(default=0)

    __hash__ = object.__hash__

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        return self.prefill_ns(n, isl, prefix) / 1e6

    def prefill_ns(self, n: int, isl: int, prefix: int) -> int:
        self.asked += 1
        tokens = n * (isl - prefix)
        return 0 if tokens <= 0 else int((2.0 + tokens * (0.05 / self.tp + 0.004 * self.tp**0.5)) * 1e6)

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:
        del total_context
        return self.decode_ns(n, mean_context) / 1e6

    def decode_ns(self, n: int, context: int) -> int:
        self.asked += 1
        return int((3.0 + (n * 0.2 + n * context * 0.002) / self.tp + 0.3 * self.tp) * 1e6) if n > 0 else 0


TIMES: dict[int, WorldTimes] = {}


def times(backend: str, shape: ParallelShape) -> WorldTimes:
    del backend
    return TIMES.setdefault(shape.gpus, WorldTimes(shape.gpus))


def config_of(**blocks: dict[str, object]) -> SmartSearchConfig:
    """A configuration of the small world; blocks are merged over defaults that keep replays short."""
    space = {
        "model_name": MODEL,
        "hardware_sku": SKU,
        "gpu_budget": 8,
        "deployment_mode": ["agg"],
        "backend": ["vllm"],
        "router_mode": ["round_robin"],
        "planner_scaling_policy": ["disabled"],
        "context_length": 150,
        "agg_max_num_batched_tokens": [8192, 16384],
        "agg_max_num_seqs": [256, 512],
        **blocks.pop("search_space", {}),
    }
    workload = {"isl": 100, "osl": 12, "concurrency": 10, "num_request_ratio": 3, **blocks.pop("workload", {})}
    workload = {name: value for name, value in workload.items() if value is not None}
    return SmartSearchConfig.model_validate({"search_space": space, "workload": workload, **blocks})


def facts_of(config: SmartSearchConfig) -> WorldFacts:
    """The capacities of the configuration's model."""
    return WorldFacts(is_moe=snapshot.MODELS[config.search_space.model_name].is_moe)


def search_of(config: SmartSearchConfig, facts: WorldFacts | None = None) -> Search:
    """The search of a configuration in the small world."""
    known = facts or facts_of(config)
    prepared = Prepared(outline(build_space(config, known), known, times), known.is_moe)
    return Search(config, None, config.sweep.seed, prepared)  # type: ignore[arg-type]


def judge(config: SmartSearchConfig, deployment: Deployment, number: int) -> Told:
    """One trial, by the plain replay; each distinct replay is run once for all tests."""
    sla = config.goal.sla
    key = (
        candidate.canonical_json(deployment),
        config.workload.model_dump_json(),
        sla.model_dump_json() if sla else "",
    )
    if key not in _REPORTS:
        _REPORTS[key] = _replayed(config, deployment)
    metrics = _REPORTS[key]
    if isinstance(metrics, ReasonCode):
        return Told(number, deployment, TrialStatus.INFEASIBLE, metrics)
    values = tuple(value or 0.0 for value in objectives(config.goal, metrics, deployment.used_gpus))
    return Told(number, deployment, TrialStatus.FEASIBLE, None, score(config.goal, values), values)


_REPORTS: dict[tuple[str, str, str], Mapping[str, Metric] | ReasonCode] = {}


def _replayed(config: SmartSearchConfig, deployment: Deployment) -> Mapping[str, Metric] | ReasonCode:
    workload, bounds = config.workload, config.goal.sla
    try:
        fleet = fleet_of(deployment)
    except InfeasibleError as error:
        return error.code
    loaded = fleet.agg or fleet.decode
    assert loaded is not None
    room = loaded.num_blocks * loaded.block_size * loaded.attention_dp * loaded.replicas
    fitting = room // ((workload.isl or 1) + (workload.osl or 1) // 2)
    batch = workload_batch(workload, load_shape(workload, deployment.kv_load_ratio, fitting), 16, None)
    return measure(fleet, batch, Sla(bounds.ttft_ms, bounds.itl_ms, bounds.e2e_ms) if bounds else None)


def fleet_of(deployment: Deployment) -> Fleet:
    """The engines of a deployment in this world."""
    return Fleet(
        **{name: _pool(deployment, name, role, WorldFacts()) for name, role in deployment.roles.items()},
        router=KvRouter() if deployment.router.mode == "kv_router" else None,
    )


def measure(fleet: Fleet, batch: RequestBatch, sla: Sla | None) -> Mapping[str, Metric]:
    """The report of the plain replay."""
    return report(replay(fleet, batch), batch, fleet, sla)


def run(config: SmartSearchConfig, n: int = 512, limit: int = 3000) -> tuple[list[Told], Coverage]:
    """A whole study: ask, judge, tell, until the search ends."""
    search, history = search_of(config), list[Told]()
    while len(history) < limit and (proposals := search.ask(history, n)):
        history += [judge(config, each.deployment, len(history) + at) for at, each in enumerate(proposals)]
    return history, search.coverage(history)


def brute_force(config: SmartSearchConfig) -> list[Told]:
    """Every candidate of the space."""
    space = build_space(config, facts_of(config))
    deployments = [
        space.deployment(number, index) for number, branch in enumerate(space.branches) for index in range(branch.size)
    ]
    return [judge(config, deployment, number) for number, deployment in enumerate(deployments)]


def _pool(deployment: Deployment, name: str, role: RoleDeployment, facts: WorldFacts) -> Pool:
    tokens = facts.kv_tokens(
        deployment.backend, role.shape, role.max_num_batched_tokens, role.max_num_seqs, role.gpu_memory_utilization
    )
    return Pool(
        role=name,  # type: ignore[arg-type]
        backend=deployment.backend,
        replicas=role.replicas,
        attention_dp=role.shape.attention_dp,
        gpus_per_replica=role.shape.gpus,
        num_blocks=tokens // role.block_size,
        block_size=role.block_size,
        max_num_batched_tokens=role.max_num_batched_tokens,
        max_num_seqs=role.max_num_seqs,
        step_times=times(deployment.backend, role.shape),
        prefix_caching=role.enable_prefix_caching,
    )


def scored(told: Told) -> Scored:
    """A result as ranking sees it."""
    assert told.score is not None
    return candidate.scored(told.deployment, told.score, told.objectives, told.rejected)
