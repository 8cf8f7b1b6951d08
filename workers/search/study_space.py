"""The space of a configuration with the catalogue's facts, kept for the rounds of a study.

Every round asks for the same space; building it takes milliseconds to a second, so the last few are kept.
"""

import json
from functools import lru_cache

from app.errors import InvalidRequestError
from app.schemas.policies import policy_faults
from app.schemas.study import SmartSearchConfig, canonical_json
from workers.search.facts import CatalogFacts
from workers.search.planners import Predictors
from workers.search.space import Space, build_space


def catalog_facts(config: SmartSearchConfig) -> CatalogFacts:
    """The facts that a configuration's model and hardware have in the catalogue."""
    wanted = config.search_space
    return CatalogFacts(wanted.model_name, wanted.hardware_sku, wanted.aic_nextn)


def study_space(config: SmartSearchConfig, predictors: Predictors | None = None) -> Space:
    """The space of a configuration; the last few are kept, as every round of a study asks for its own.

    Args: predictors, the load predictor chosen per throughput interval; without them candidates name none.
    Raises: InvalidRequestError if no scaling policy is left, or none of their predictors can run.
    """
    known = {interval: dict(fields) for interval, fields in (predictors or {}).items()}
    return _space(canonical_json(config), json.dumps(known, sort_keys=True))


@lru_cache(maxsize=8)
def _space(document: str, predictors: str) -> Space:
    config = SmartSearchConfig.model_validate_json(document)
    check_policies(config)
    chosen = {int(interval): fields for interval, fields in json.loads(predictors).items()}
    return build_space(config, catalog_facts(config), chosen)


def check_policies(config: SmartSearchConfig) -> None:
    """Raises: InvalidRequestError if no scaling policy is left, or none of their predictors can run."""
    faults = list(policy_faults(config))
    if faults:
        raise InvalidRequestError(faults)
