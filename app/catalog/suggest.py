"""Spellings of catalog names: aliases that mean exactly one name, and the nearest names to one that is unknown."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import lru_cache

from app.catalog import snapshot

_MAX_NAME = 200
_TOKEN_WEIGHT = 0.5


@lru_cache(maxsize=1)
def model_aliases() -> dict[str, str]:
    """Folded spelling -> model: the name in any case, and its part behind the slash if only one model has it."""
    return _unambiguous((name, (name, short_name(name))) for name in snapshot.MODELS)


@lru_cache(maxsize=1)
def hardware_aliases() -> dict[str, str]:
    """Folded spelling -> hardware: the name in any case, and without `_sxm` or `_pcie` if only one is meant."""
    return _unambiguous((name, (name, short_name(name))) for name in snapshot.HARDWARE)


def short_name(name: str) -> str:
    """A model without its organisation, a GPU type without its form factor."""
    return re.sub(r"_(sxm|pcie)$", "", name.rpartition("/")[2])


def canonical_model(name: str) -> str | None:
    """The model that a spelling means, or None."""
    return name if name in snapshot.MODELS else model_aliases().get(_fold(name))


def canonical_hardware(name: str) -> str | None:
    """The hardware that a spelling means, or None."""
    return name if name in snapshot.HARDWARE else hardware_aliases().get(_fold(name))


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The `count` known names most like `name`, best first, ties in alphabetical order; never empty if any is known."""
    wanted = name[:_MAX_NAME]
    return sorted(known, key=lambda each: (-_likeness(wanted, each), each))[:count]


def _likeness(wanted: str, known: str) -> float:
    """Likeness of letters, whole or behind the slash, plus the share of common words ("llama", "70b"); a head start."""
    left, right = _fold(wanted), _fold(known)
    letters = max(_ratio(left, right), _ratio(left.rpartition("/")[2], right.rpartition("/")[2]))
    left_words, right_words = _words(left), _words(right)
    common = len(left_words & right_words) / max(1, len(left_words | right_words))
    return letters + _TOKEN_WEIGHT * (common + right.startswith(left))


def _ratio(left: str, right: str) -> float:
    return SequenceMatcher(None, left, right, autojunk=False).ratio()


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+|\d+[a-z]?", name))


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")


def _unambiguous(spellings: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, str]:
    meant: dict[str, set[str]] = {}
    for name, ways in spellings:
        for way in ways:
            meant.setdefault(_fold(way), set()).add(name)
    return {way: names.pop() for way, names in meant.items() if len(names) == 1}
