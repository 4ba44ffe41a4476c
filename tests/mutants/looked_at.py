"""Changes that no test notices, and that a review found to change nothing that matters; with the reason."""

from __future__ import annotations

# The module, the line of the source as it stands, and the text that takes the place of a part of it.
HARMLESS: dict[tuple[str, str, str], str] = {
    (
        "edgeagent/engine/radix_tree.py",
        "if end > first:",
        "(end >= first)",
    ): "An empty part comes with the others; the tokens are the same.",
    (
        "edgeagent/engine/prefix_cache.py",
        "if rank > best_rank and self._runner.can_trim(holder, length):",
        "(rank >= best_rank)",
    ): "Of several holders with the same rank either serves as well.",
    (
        "edgeagent/api/security.py",
        "super().__init__(error.message)",
        "pass",
    ): "The message would show in the traceback of a bug only; refusals are answered from `error`.",
    (
        "edgeagent/engine/block_cache.py",
        "if len(self._tree) > self._sweep_at:",
        "(len(self._tree) >= self._sweep_at)",
    ): "The sweep comes one block sooner; what it takes out is held by no tier in either case.",
}
