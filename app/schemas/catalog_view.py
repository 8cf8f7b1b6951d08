"""What can be searched, and how the service is: answers of the operations routes."""

from pydantic import BaseModel


class PerfDataView(BaseModel):
    """The performance-data package that step times and capacities come from."""

    package: str
    version: str


class ModelView(BaseModel):
    """A model that can be searched."""

    name: str
    is_moe: bool
    max_context_tokens: int


class HardwareView(BaseModel):
    """A GPU type that can be searched."""

    name: str
    memory_bytes: int
    gpus_per_node: int


class DataView(BaseModel):
    """Data of one GPU type and backend: its versions, the default one first, and the models it covers."""

    hardware_sku: str
    backend: str
    versions: list[str]
    models: list[str]


class CatalogView(BaseModel):
    """Everything that can be searched."""

    perf_data: PerfDataView
    models: list[ModelView]
    hardware: list[HardwareView]
    backends: list[str]
    data: list[DataView]


class Health(BaseModel):
    """`ok`, and the state of each part that was asked."""

    status: str
    parts: dict[str, str]
