"""Builds the overlays of packaging/cluster as `kubectl kustomize` does, as far as they use it, where no kubectl is.

A generated ConfigMap keeps its name: kubectl adds a hash of its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
_KNOWN = {
    *("apiVersion", "kind", "resources", "components", "patches", "namespace", "nameSuffix", "labels"),
    *("configMapGenerator", "generatorOptions"),
}


def build(folder: Path, given: list[Object] | None = None) -> list[Object]:
    """Return the objects of a kustomization; those of a component, with the `given` ones that it changes."""
    rules = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    assert rules.keys() <= _KNOWN, f"{folder}: {rules.keys() - _KNOWN}"
    objects = list(given or [])
    for name in rules.get("resources", ()):
        path = folder / name
        objects += build(path) if path.is_dir() else _read(path.read_text(encoding="utf-8"))
    for made in rules.get("configMapGenerator", ()):
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": made["name"]}})
    for name in rules.get("components", ()):
        objects = build(folder / name, objects)
    for rule in rules.get("patches", ()):
        objects = _patched(objects, rule, folder)
    for each in objects if "namespace" in rules else ():
        if each["kind"] != "Namespace":
            each["metadata"]["namespace"] = rules["namespace"]
    if suffix := rules.get("nameSuffix"):
        _rename({each["metadata"]["name"] for each in objects}, suffix, objects)
    for rule in rules.get("labels", ()):
        for each in objects:
            each["metadata"].setdefault("labels", {}).update(rule["pairs"])
            if rule.get("includeSelectors"):
                _select(each, rule["pairs"])
    return objects


def _read(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


def _patched(objects: list[Object], rule: Object, folder: Path) -> list[Object]:
    patch = yaml.safe_load(rule["patch"] if "patch" in rule else (folder / rule["path"]).read_text(encoding="utf-8"))
    if isinstance(patch, dict):
        assert patch["$patch"] == "delete"
        wanted = patch["kind"], patch["metadata"]["name"]
        left = [each for each in objects if (each["kind"], each["metadata"]["name"]) != wanted]
        assert len(left) == len(objects) - 1, f"{folder}: no {wanted}"
        return left
    chosen = [
        each
        for each in objects
        if re.fullmatch(rule["target"]["kind"], each["kind"])
        and re.fullmatch(rule["target"]["name"], each["metadata"]["name"])
    ]
    assert chosen, f"{folder}: no {rule['target']}"
    for each in chosen:
        for operation in patch:
            _apply(each, deepcopy(operation))
    return objects


def _apply(target: Object, operation: Object) -> None:
    """Apply an operation of RFC 6902 (add, replace or remove)."""
    *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:])
    at: Any = target
    for step in steps:
        at = at[int(step) if isinstance(at, list) else step]
    if isinstance(at, list):
        index = len(at) if last == "-" else int(last)
        if operation["op"] == "add":
            at.insert(index, operation["value"])
        elif operation["op"] == "replace":
            at[index] = operation["value"]
        else:
            del at[index]
    elif operation["op"] == "remove":
        del at[last]
    else:
        assert operation["op"] == "add" or last in at, operation
        at[last] = operation["value"]


def _rename(names: set[str], suffix: str, objects: list[Object]) -> None:
    """Give the objects a suffix, also where autoscalers name them."""
    for each in objects:
        each["metadata"]["name"] += suffix
        target = each.get("spec", {}).get("scaleTargetRef")
        if target and target["name"] in names:
            target["name"] += suffix


def _select(each: Object, pairs: dict[str, str]) -> None:
    """Add labels to the object's pods and to all selectors in it."""
    for selector in _selectors(each):
        selector.update(pairs)
    if each["kind"] == "Service":
        each["spec"]["selector"].update(pairs)
    if "template" in each.get("spec", {}):
        each["spec"]["template"]["metadata"].setdefault("labels", {}).update(pairs)


def _selectors(value: Any) -> Iterator[dict[str, str]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(children):
        if key == "matchLabels":
            yield child
        else:
            yield from _selectors(child)
