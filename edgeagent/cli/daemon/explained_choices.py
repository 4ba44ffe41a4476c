"""Explains the settings that were chosen for a model on its machine, with the measurements behind them, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edgeagent.cli.display import table, wrapped

_HOW = {
    "option": "asked for",
    "measurement": "measured",
    "default": "the default",
    "model": "for this model",
    "trial": "tried",
}


def explained_choices(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each chosen setting. If it was measured, also yield a table of the milliseconds for each value.

    `model` is the model's entry in the daemon's status. If no setting was chosen, yield a line that says so.
    """
    choices = (model.get("info") or {}).get("choices")
    if not choices:
        yield wrapped(f"{model['name']}: nothing was chosen yet")
    for choice in choices or ():
        how = _HOW.get(choice["by"], choice["by"])
        yield wrapped(f"{model['name']}: {choice['name']} {choice['value']} ({how}): {choice['why']}")
        works = list(dict.fromkeys(work for each in choice["alternatives"] for work in each["work_ms"]))
        if works:
            rows = [
                [f"  {work}, ms", *(f"{each['work_ms'].get(work, 0):,.1f}" for each in choice["alternatives"])]
                for work in works
            ]
            yield table(["", *(each["value"] for each in choice["alternatives"])], rows)
