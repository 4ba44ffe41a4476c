"""Each promise of the guides about privacy or recovery, and the test that holds it.

A sentence that is changed or added on these pages must be listed here again, with the test that follows it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KIOSK, SECURITY, SERVICE = "docs/guides/kiosk.md", "docs/howto/security.md", "docs/howto/service.md"
DESKTOP, TERMINAL, CACHE = "docs/guides/desktop-app.md", "docs/guides/terminal.md", "docs/howto/cache.md"
ON_KIOSK, ON_DESKTOP = "tests/integration/test_kiosk_guide.py", "tests/integration/test_desktop_guide.py"
FORGOTTEN = f"{ON_KIOSK}::test_nothing_of_a_conversation_is_on_the_disk"
RESUMED = f"{ON_DESKTOP}::test_an_answer_in_the_background_is_resumed_and_a_conversation_continues_after_a_restart"
ACCESS = "tests/robust/test_A1_access_table.py::test_every_route_of_the_live_app"
CACHED = (
    "tests/integration/test_disk_cache_real.py::test_a_prompt_is_there_after_kill_9_and_under_the_same_settings_only"
)

PROMISES = [
    (KIOSK, "keeps every request on the device", "tests/router/test_policy.py"),
    (KIOSK, "makes every program show a token, also on loopback", f"{ON_KIOSK}::test_every_program_needs_a_token"),
    (KIOSK, "Nothing of them is on the disk, also after a power cut", FORGOTTEN),
    (KIOSK, "What earlier runs kept is deleted at the start.", FORGOTTEN),
    (
        KIOSK,
        "A client can continue only its own.",
        "tests/conversation/test_database.py::test_other_partitions_see_nothing",
    ),
    (
        KIOSK,
        "With this token a program can generate, and cannot do anything else.",
        f"{ON_KIOSK}::test_every_program_needs",
    ),
    (KIOSK, "The daemon starts the worker again after a crash or a hang.", "tests/robust/test_F1_worker_killed.py"),
    (KIOSK, "A model that kills every worker is quarantined for five minutes.", "tests/robust/test_F3_quarantine.py"),
    (KIOSK, "It needs a token of its own", f"{ON_KIOSK}::test_every_program_needs_a_token_of_its_own_and_the_watchdog"),
    (SECURITY, "With `--forget` no conversation is written to the disk at all", FORGOTTEN),
    (
        SECURITY,
        "edgeagent writes no core files.",
        "tests/robust/test_A6_secrets.py::test_the_token_is_in_no_arguments_no_environment_and_no_core",
    ),
    (SECURITY, "Logs, metrics and traces never contain prompts or answers", "tests/robust/test_I6_no_content.py"),
    (SECURITY, "The daemon listens on loopback.", "tests/robust/test_A4_bind.py"),
    (SECURITY, "Only the owner may change the machine, use the network or see other users' work.", ACCESS),
    (SECURITY, "adds a Unix socket that only the owner's programs can use", "tests/robust/test_A5_unix_socket.py"),
    (SECURITY, "A web page cannot reach the daemon, not even by DNS rebinding", "tests/robust/test_A3_origin_host.py"),
    (SECURITY, "On an address other than loopback, tokens and TLS are mandatory.", "tests/robust/test_A4_bind.py"),
    (SECURITY, "A running daemon uses the new token at once.", "tests/robust/test_A6_removed_tokens.py"),
    (
        SECURITY,
        "| stored responses | state folder, 0600 |",
        "tests/conversation/test_database.py::test_the_files_are_private",
    ),
    (
        SECURITY,
        "The worker's environment has no tokens and no secrets.",
        "tests/robust/test_A6_secrets.py::test_the_worker",
    ),
    (SECURITY, "Nothing leaves the machine unless its owner adds a remote.", "tests/robust/test_A8_sandbox.py"),
    (SERVICE, "Stored responses and cached prompts are there again after the next start.", CACHED),
    (SERVICE, "live requests have `--drain-s` seconds to finish", "tests/robust/test_F19_drain.py"),
    (SERVICE, "| 3 | the port is taken | no, choose another |", "tests/daemon/test_lifecycle.py::test_a_taken_port"),
    (
        SERVICE,
        "| 4 | another daemon uses the state folder | no |",
        "tests/daemon/test_lifecycle.py::test_one_daemon_for",
    ),
    (DESKTOP, "It is there while a daemon runs", f"{ON_DESKTOP}::test_another_language_finds_the_daemon_by_its_file"),
    (DESKTOP, "Finished responses are stored on the disk, unless you sent `store: false`.", RESUMED),
    (
        DESKTOP,
        "The daemon computes the prompt and generates nothing.",
        "tests/api/responses/test_body.py::test_prefill_only",
    ),
    (DESKTOP, "It runs to its end without you.", RESUMED),
    (DESKTOP, "A WebSocket refuses `background`.", RESUMED),
    (TERMINAL, "With `--no-store` nothing of the chat is stored on disk.", "tests/cli/test_run.py::test_no_store"),
    (CACHE, "Each client has its own cached prompts", "tests/integration/test_disk_cache_real.py"),
    ("docs/remote.md", "If it cannot be written, nothing is sent.", "tests/egress/test_ledger.py"),
    ("docs/remote.md", "Without a remote nothing leaves the machine.", "tests/robust/test_A8_sandbox.py"),
    (
        "README.md",
        "it listens on loopback, nothing leaves the machine, and logs hold no prompts",
        "tests/robust/test_A4_bind.py",
    ),
]


@pytest.mark.parametrize(("page", "sentence", "test"), PROMISES, ids=lambda value: str(value)[-40:])
def test_each_promise_stands_there_and_has_its_test(page: str, sentence: str, test: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert sentence in text, "the page says something else by now"
    file, _, name = test.partition("::")
    assert (ROOT / file).is_file()
    assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [KIOSK, SECURITY, DESKTOP])
def test_no_promise_is_left_out(page: str) -> None:
    """A sentence with an absolute word is a promise."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    told = [sentence for each, sentence, _ in PROMISES if each == page]
    for found in re.finditer(r"[^.|:]*\b([Nn]ever|[Nn]othing|is deleted|runs to its end)\b[^.|:]*", text):
        is_sentence = " " in found[0].strip()
        assert not is_sentence or any(
            sentence.rstrip(".") in found[0] or found[0].strip() in sentence for sentence in told
        ), found[0]
