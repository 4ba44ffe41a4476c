"""Tries whether llguidance compiles a grammar. This module needs no vocabulary, so it runs apart from the worker."""

from __future__ import annotations

from edgeagent.text.grammar.library import LLMatcher, LLParserLimits

# Errors must not carry the client's schema into logs. Without the large lexemes, a first mask takes longer and each
# grammar less.
LIMITS = LLParserLimits(
    verbose_errors=False, precompute_large_lexemes=False, max_grammar_size=200_000, max_lexer_states=50_000
)
# llguidance's error for a grammar that matches no text.
_NO_TEXT = "NoExtensionBias"


def grammar_fault(grammar: str) -> str:
    """Return why a grammar cannot be compiled, on one line; empty if it can.

    The time and the memory that this takes have no limit, so call it where both are limited.
    """
    return reason(fault) if (fault := LLMatcher.validate_grammar(grammar, limits=LIMITS)) else ""


def reason(text: str) -> str:
    """Return llguidance's error as one line.

    Usually this is the first line of the error. If it ends with a colon, as for regular expressions, the last line is
    added, because that has the reason. If no text fits the grammar, the line says so in plain words.
    """
    lines = text.strip().splitlines() or ["unknown reason"]
    reason = lines[0]
    if reason == _NO_TEXT:
        return "no value fits it; see whether its `$ref` leads in a circle"
    if reason.endswith(":") and len(lines) > 1:
        reason = f"{reason} {lines[-1].removeprefix('error: ')}"
    return reason[:300]
