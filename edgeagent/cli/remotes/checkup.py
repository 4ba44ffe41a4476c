"""The output of `edgeagent remote test` for one endpoint."""

from __future__ import annotations

from typing import Any

_MAX_NAMED = 8


def checkup_lines(found: dict[str, Any]) -> list[str]:
    """Return the result of a test as lines of text: the times of the stages, the models, and the problem if any."""
    region = f" ({found['region']})" if found["region"] else ""
    stages = (("name", "name_s"), ("connect", "connect_s"), ("TLS", "tls_s"), ("models", "models_s"))
    times = [f"{word} {_milliseconds(found[field])}" for word, field in stages if found[field] is not None]
    if found["is_http2"]:
        times.append("HTTP/2")
    lines = [f"{found['url']}{region}: {', '.join(times) or 'not reached'}"]
    if found["models"]:
        names = ", ".join(found["models"][:_MAX_NAMED])
        more = f" and {len(found['models']) - _MAX_NAMED} more" if len(found["models"]) > _MAX_NAMED else ""
        lines.append(f"  it serves {names}{more}")
    if found["token_s"] is not None:
        lines.append(f"  one token from {found['model']}: {_milliseconds(found['token_s'])}")
    if found["problem"]:
        lines.append(f"  problem: {found['problem']}")
    return lines


def _milliseconds(seconds: float) -> str:
    return f"{1000.0 * seconds:.1f} ms"
