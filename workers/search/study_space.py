"""The space of a configuration with the catalogue's facts, kept for the rounds of a study.

Every round asks for the same space; building it takes milliseconds to a second, so the last few are kept.
"""

from functools import lru_cache

from app.errors import FieldFault, InvalidRequestError
from app.schemas.study import SmartSearchConfig, canonical_json
from workers.search.facts import CatalogFacts
from workers.search.knobs import kept_policies, planners
from workers.search.space import Space, build_space


def catalog_facts(config: SmartSearchConfig) -> CatalogFacts:
    """The facts that a configuration's model and hardware have in the catalogue."""
    wanted = config.search_space
    return CatalogFacts(wanted.model_name, wanted.hardware_sku, wanted.aic_nextn)


def study_space(config: SmartSearchConfig) -> Space:
    """The space of a configuration; the last few are kept, as every round of a study asks for its own."""
    return _space(canonical_json(config))


@lru_cache(maxsize=8)
def _space(document: str) -> Space:
    config = SmartSearchConfig.model_validate_json(document)
    _check_policies(config)
    return build_space(config, catalog_facts(config))


def _check_policies(config: SmartSearchConfig) -> None:
    if planners(config):
        return
    written = [p if isinstance(p, str) else p.model_dump() for p in config.search_space.planner_scaling_policy]
    why = f"holds no policy that goal.target {config.goal.target} can use"
    if kept_policies(config.search_space, config.goal):
        why = "holds scaling policies only, which the simulator does not replay"
    raise InvalidRequestError(
        [FieldFault("/search_space/planner_scaling_policy", written, why, "add the policy disabled")]
    )
