"""Pairs every pool of wordings with the sealed wordings of the test set, and checks that training has none of them."""

from __future__ import annotations

from . import actions, facts, memory, structured, sums, talk, tools
from .actions import ACTIONS
from .met import is_met
from .samples import Pool, is_sealed
from .texts import HELD_OUT

_MODULES = {
    "talk": talk,
    "facts": facts,
    "memory": memory,
    "sums": sums,
    "actions": actions,
    "tools": tools,
    "structured": structured,
}


def named_pools() -> dict[str, Pool]:
    """Return all pools of wordings by name.

    Examples are `facts.value_asks` (a variable of a module), `talk.greet` (an intent) and `timer.asks` (an action).
    """
    found: dict[str, Pool] = {}
    for module_name, module in _MODULES.items():
        for name, value in vars(module).items():
            if isinstance(value, Pool) and value.is_wording:
                found[f"{module_name}.{name.strip('_').lower()}"] = value
    for intent, (_, phrases) in vars(talk)["_INTENTS"].items():
        found[f"talk.{intent}"] = phrases
    for kind, action in ACTIONS.items():
        found[f"{kind}.asks"] = action.asks
        if action.amends:
            found[f"{kind}.amends"] = action.amends
    return found


def sealed_wordings() -> dict[Pool, tuple[str, ...]]:
    """Return the sealed wordings of each pool, without those that the shipped target met in training.

    Pools for which none remain are left out. Raise LookupError if a sealed wording belongs to an unknown pool.
    """
    pools = named_pools()
    unknown = sorted(HELD_OUT.keys() - pools.keys())
    if unknown:
        raise LookupError(f"sealed wordings for pools that do not exist: {', '.join(unknown)}; keep the pools' names")
    fresh = {name: tuple(w for w in wordings if not is_met(w)) for name, wordings in HELD_OUT.items()}
    return {pools[name]: wordings for name, wordings in fresh.items() if wordings}


def check_sealed() -> None:
    """Assert that the parts of each pool do not overlap, and that no pool holds a sealed wording.

    Wordings that differ only in the names of their slots count as equal.
    """
    for name, pool in named_pools().items():
        assert not set(pool.train) & set(pool.eval), f"the parts of {name} overlap"
        for wording in (*pool.train, *pool.eval):
            assert not is_sealed(wording), f"{name} holds a sealed wording; take it out: {wording!r}"
