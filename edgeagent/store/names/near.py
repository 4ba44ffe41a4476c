"""Suggests existing names for an unknown model name: similar ones, or else the first known ones."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Set

_LIKENESS = 0.6
_MAX_NEAR = 3
_MAX_KNOWN = 30


def near_names(name: str, known: Collection[str], others: str = "org/repo[:QUANT]") -> str:
    """Return suggestions as a phrase for an error's text. If no name is similar, it lists the first of `known`.

    A set is sorted first; other collections keep their order. `others` describes what else can be a name. In an error
    for a client, it must not mention paths, because clients may not name models by path.
    """
    by_folded = {each.lower().replace(":", "-"): each for each in sorted(known)}
    whole = name.lower().replace(":", "-")
    stem = name.lower().partition(":")[0]
    near: list[str] = []
    for text in (whole, stem):
        near = near or difflib.get_close_matches(text, by_folded, n=_MAX_NEAR, cutoff=_LIKENESS)
    near = near or [each for each in by_folded if stem[:4] and each.startswith(stem[:4])][:_MAX_NEAR]
    if near:
        return f"near names: {', '.join(by_folded[each] for each in near)}"
    shown = sorted(known) if isinstance(known, Set) else list(dict.fromkeys(known))
    rest = f" and {len(shown) - _MAX_KNOWN} more" if len(shown) > _MAX_KNOWN else ""
    return f"known names: {', '.join(shown[:_MAX_KNOWN])}{rest}, and {others}"
