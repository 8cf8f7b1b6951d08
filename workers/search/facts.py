"""What building a space asks about a model on a system; injected, so that tests need no performance data."""

from dataclasses import dataclass
from typing import Protocol

from app.catalog import snapshot
from app.schemas.deployment import ParallelShape
from workers.capacity.memory import kv_tokens_per_rank
from workers.errors import UnsupportedError
from workers.timing import perf_data
from workers.timing.aic import engine_identity, has_times


class Facts(Protocol):
    """One model on one system."""

    @property
    def is_moe(self) -> bool:
        """Whether the model has routed experts."""

    @property
    def max_context_tokens(self) -> int:
        """The model's own context length."""

    def kv_tokens(
        self, backend: str, shape: ParallelShape, max_num_batched_tokens: int, max_num_seqs: int, memory_fraction: float
    ) -> int:
        """KV tokens of one rank.

        Raises: InfeasibleError(NO_KV_BUDGET), UnsupportedError(NO_PERF_DATA or BACKEND_CANNOT_RUN_SHAPE).
        """

    def has_data(self, backend: str, shape: ParallelShape) -> bool:
        """Whether step times of the shape are known."""

    def data_version(self, backend: str) -> str | None:
        """Version of the data that answers for the backend, None if there is none on this system."""


@dataclass(frozen=True, slots=True)
class CatalogFacts:
    """The catalogue and the installed performance data."""

    model_name: str
    hardware_sku: str
    nextn: int | None = None

    @property
    def is_moe(self) -> bool:
        """As the catalogue says."""
        return snapshot.MODELS[self.model_name].is_moe

    @property
    def max_context_tokens(self) -> int:
        """As the catalogue says."""
        return snapshot.MODELS[self.model_name].max_context_tokens

    def kv_tokens(
        self, backend: str, shape: ParallelShape, max_num_batched_tokens: int, max_num_seqs: int, memory_fraction: float
    ) -> int:
        """From the memory model, asked once per question."""
        return kv_tokens_per_rank(
            self.model_name,
            self.hardware_sku,
            backend,
            shape,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            memory_fraction=memory_fraction,
            nextn=self.nextn,
        )

    def has_data(self, backend: str, shape: ParallelShape) -> bool:
        """As the package answers one prefill and one decode question."""
        try:
            return has_times(engine_identity(self.model_name, self.hardware_sku, backend, shape, self.nextn))
        except UnsupportedError:
            return False

    def data_version(self, backend: str) -> str | None:
        """Of the installed package."""
        try:
            return perf_data.data_version(self.hardware_sku, backend)
        except UnsupportedError:
            return None
