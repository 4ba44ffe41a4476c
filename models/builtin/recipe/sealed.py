"""Names every pool of wordings, gives each the sealed wordings of the test set, and proves that training holds none."""

from __future__ import annotations

from . import actions, facts, memory, sums, talk, tools
from .actions import ACTIONS
from .met import is_met
from .samples import Pool, is_sealed
from .texts import HELD_OUT

_MODULES = {"talk": talk, "facts": facts, "memory": memory, "sums": sums, "actions": actions, "tools": tools}


def named_pools() -> dict[str, Pool]:
    """Name the pools of wordings: `facts.value_asks`, `talk.greet` for an intent, `timer.asks` for an action."""
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
    """Pair each pool with the sealed wordings that no training has met; some, and training's own pools, have none."""
    pools = named_pools()
    unknown = sorted(HELD_OUT.keys() - pools.keys())
    if unknown:
        raise LookupError(f"sealed wordings for pools that do not exist: {', '.join(unknown)}; keep the pools' names")
    fresh = {name: tuple(w for w in wordings if not is_met(w)) for name, wordings in HELD_OUT.items()}
    return {pools[name]: wordings for name, wordings in fresh.items() if wordings}


def check_sealed() -> None:
    """Assert that no sealed wording, whatever its slots, is in a pool's part for training or for development."""
    for name, pool in named_pools().items():
        assert not set(pool.train) & set(pool.eval), f"the parts of {name} overlap"
        for wording in (*pool.train, *pool.eval):
            assert not is_sealed(wording), f"{name} holds a sealed wording; take it out: {wording!r}"
