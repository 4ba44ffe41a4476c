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
VOICE, MODELS, WATCH = "docs/guides/voice-assistant.md", "docs/howto/models.md", "docs/howto/watch.md"
ANSWERS = "docs/howto/answers.md"
README, REMOTE, PAGE = "README.md", "docs/remote.md", "docs/howto/page.md"
REALTIME, WEBSOCKET = "docs/reference/realtime.md", "docs/reference/websocket.md"
ACCESS_PAGE, CLUSTER, INDEX = "docs/access.md", "docs/cluster.md", "docs/index.md"
ON_KIOSK, ON_DESKTOP = "tests/integration/test_kiosk_guide.py", "tests/integration/test_desktop_guide.py"
ON_WYOMING = "tests/integration/test_wyoming_real.py"
ON_WAYS = "tests/integration/test_ways_out.py"
FORGOTTEN = f"{ON_KIOSK}::test_nothing_of_a_conversation_is_on_the_disk"
RESUMED = f"{ON_DESKTOP}::test_an_answer_in_the_background_is_resumed_and_a_conversation_continues_after_a_restart"
ACCESS = "tests/robust/test_A1_access_table.py::test_every_route_of_the_live_app"
CACHED = (
    "tests/integration/test_disk_cache_real.py::test_a_prompt_is_there_after_kill_9_and_under_the_same_settings_only"
)
EVERY_STREAM = "tests/robust/test_F1_worker_killed.py::test_every_stream_goes_on_over_every_kill"
INTRUDER = "tests/robust/test_A8_sandbox.py::test_an_intruder_finds_nothing_but_the_model"

IMAGES = "docs/howto/images.md"
PROMISES = [
    (README, "prompt cache that survives a restart", CACHED),
    (README, "streams continue after the model's process crashes", EVERY_STREAM),
    (README, "the model's process has no access to the network and your files (Linux)", INTRUDER),
    (INDEX, "A prefix that several prompts share is computed once, and survives a restart.", CACHED),
    (INDEX, "If it crashes, a new one continues its streams after the last delivered token", EVERY_STREAM),
    (REMOTE, "a restart does not reset it", "tests/egress/test_ledger.py::test_budgets_outlive_the_daemon"),
    (
        REMOTE,
        "A refused key is not sent again until you change it.",
        "tests/backends/remote/test_faults.py::test_a_refused_key_disables_the_remote",
    ),
    (
        REMOTE,
        "`--key-file FILE` a file that only you can read (0600)",
        "tests/remotes/test_keys.py::test_a_key_file_that_others_can_read_is_refused",
    ),
    (
        ACCESS_PAGE,
        "are trusted if no other user can read or write them (mode 0600)",
        "tests/robust/test_A6_files.py::test_a_file_that_cannot_be_trusted",
    ),
    (
        DESKTOP,
        "The reply tries for a minute to reach the daemon again, and goes on exactly where it was.",
        "tests/client/test_sleep.py::test_a_sleep_is_no_time_without_the_daemon",
    ),
    (
        KIOSK,
        "the page forgets the conversation",
        "tests/page/test_kiosk.py::test_an_idle_page_forgets_its_visitor",
    ),
    (KIOSK, "**Start over** forgets at once", "tests/page/test_kiosk.py::test_start_over_forgets_at_once"),
    (
        KIOSK,
        "While the daemon is away, the page says so, and goes on by itself.",
        "tests/page/test_kiosk.py::test_the_page_waits_for_the_daemon_and_asks_again",
    ),
    (
        PAGE,
        "If the daemon is gone, the page says so, and goes on by itself.",
        "tests/page/test_page.py::test_the_page_goes_on_when_the_daemon_is_back",
    ),
    (CACHE, "they survive a restart", CACHED),
    (
        CACHE,
        "Files are private (0600) and sealed with a secret of this installation.",
        "tests/engine/cache/disk/test_store.py::test_files_are_private",
    ),
    (
        CACHE,
        "Files are private (0600) and sealed with a secret of this installation.",
        "tests/robust/test_F8_cache_files.py::test_of_another_installation",
    ),
    (SECURITY, "cache folder, 0600, sealed", "tests/engine/cache/disk/test_store.py::test_files_are_private"),
    (
        SECURITY,
        "`history` in the state folder, 0600",
        "tests/cli/test_terminal.py::test_lines_are_remembered_over_sessions",
    ),
    (SECURITY, "ledger in the state folder, 0600", "tests/egress/test_ledger.py::test_its_files_are_private"),
    (SECURITY, "this process has no network, cannot start programs", INTRUDER),
    (SECURITY, "It can write only the prompt cache and the GPU driver's caches.", INTRUDER),
    (
        IMAGES,
        "By default an image's address (`https://...`) in a message is refused",
        "tests/api/test_addresses.py::test_without_hosts_nothing_is_fetched",
    ),
    (
        IMAGES,
        "With the last response that names it, it is deleted and its bytes are overwritten.",
        "tests/api/test_media_clients.py::test_a_stored_conversation_keeps_its_images_over_a_restart",
    ),
    (
        REMOTE,
        "Besides the hosts above, a daemon that listens beyond this machine looks up this machine's own name.",
        "tests/daemon/test_addresses.py::test_the_full_name_is_asked_for_aside_and_not_on_loopback",
    ),
    (
        REMOTE,
        "No image is fetched from an address for a conversation that must stay here.",
        "tests/api/test_addresses.py::test_nothing_is_fetched_for_a_conversation_that_stays_here",
    ),
    (KIOSK, "keeps every request on the device", "tests/router/test_policy.py::test_the_table"),
    (KIOSK, "makes every program show a token, also on loopback", f"{ON_KIOSK}::test_every_program_needs_a_token"),
    (KIOSK, "Nothing of them is on the disk, also after a power cut", FORGOTTEN),
    (KIOSK, "What earlier runs kept is deleted at the start.", FORGOTTEN),
    (KIOSK, "Nothing of a visitor is written to the disk", "tests/page/test_kiosk_kills.py::test_all_comes_back"),
    (
        KIOSK,
        "Visitors leave no answers there: only what you have warmed is kept.",
        "tests/integration/test_answers_real.py::test_the_guides_commands_answer_visitors_without_the_model",
    ),
    (
        KIOSK,
        "Nothing of a visitor is written to the disk",
        "tests/api/page/test_kiosk.py::test_a_visitor_asks_with_the_owners_settings_and_leaves_nothing",
    ),
    (KIOSK, "`forget = true` keeps conversations in memory only.", FORGOTTEN),
    (ANSWERS, "With `--forget`, answers are in memory only.", "tests/answers/test_rules.py::test_forget_keeps_no_file"),
    (ANSWERS, "to get a new answer that is not kept", "tests/answers/test_wires.py::test_a_request_opts_out"),
    (ANSWERS, "These answers are not kept", "tests/answers/test_answers.py::test_what_is_not_kept"),
    (
        ANSWERS,
        "an answer of a remote's model is not kept at a server",
        "tests/answers/test_rules.py::test_answers_of_remotes_are_not_kept_at_a_server",
    ),
    (
        "docs/howto/similar-answers.md",
        "teach it too; they are not kept.",
        "tests/answers/similar/test_learning.py::test_a_client_that_only_reads_teaches_and_leaves_nothing",
    ),
    (
        "docs/howto/similar-answers.md",
        "never gets the answer of another client",
        "tests/answers/similar/test_learning.py::test_another_clients_answers_are_found_only_if_they_are_shared",
    ),
    (
        ACCESS_PAGE,
        "None of them can read, delete or detect those of another",
        "tests/conversation/test_database.py::test_other_partitions_see_nothing",
    ),
    (
        ACCESS_PAGE,
        "None of them can read, delete or detect those of another",
        "tests/integration/test_cache_isolation.py::test_what_a_client_has_asked_helps_no_other",
    ),
    (
        ACCESS_PAGE,
        "no token can have this name.",
        "tests/credentials/test_keys.py::test_no_token_has_the_name_of_those_who_need_none",
    ),
    (
        ACCESS_PAGE,
        "Its requests have the conversation and nothing else.",
        "tests/api/page/test_kiosk.py::test_a_visitor_sets_nothing_of_the_owners",
    ),
    (ACCESS_PAGE, "**Row 11** never reaches a route", "tests/robust/test_A5_unix_socket.py::test_another_user_gets"),
    (INDEX, "No request leaves the machine until its owner adds a remote.", f"{ON_KIOSK}::test_nothing_leaves"),
    (
        REALTIME,
        "no prompt or answer of it is written to disk",
        "tests/api/test_unstored.py::test_nothing_of_it_is_written_to_the_disk",
    ),
    (
        ANSWERS,
        "Each client gets only its own answers.",
        "tests/answers/test_answers.py::test_another_question_is_not",
    ),
    (
        ANSWERS,
        "A single damaged answer counts as not found.",
        "tests/answers/test_store.py::test_a_changed_row_costs_itself_only",
    ),
    (
        ANSWERS,
        "If the row cannot be written, nothing is sent.",
        f"{ON_WAYS}::test_without_a_ledger_nothing_is_sent",
    ),
    (
        ANSWERS,
        "is neither looked up nor kept there",
        "tests/answers/test_redis.py::test_what_must_stay_on_this_machine_is_not_kept_elsewhere",
    ),
    (KIOSK, "There are no tools.", "tests/api/page/test_kiosk.py::test_a_visitor_sets_nothing_of_the_owners"),
    (
        KIOSK,
        "The page's token opens the page's own paths only",
        "tests/page/test_kiosk.py::test_a_visitor_with_the_token_reaches_nothing_else",
    ),
    (
        KIOSK,
        "the daemon deletes the cached prompts too",
        "tests/api/page/test_kiosk.py::test_a_visitor_asks_with_the_owners_settings_and_leaves_nothing",
    ),
    (KIOSK, "The page has no links, no menu", "tests/page/test_kiosk.py::test_there_is_no_way_out"),
    (KIOSK, "`edgeagent kiosk` starts the browser again", "tests/page/test_kiosk_kills.py::test_all_comes_back"),
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
    (
        KIOSK,
        "The daemon starts the worker again after a crash or a hang.",
        "tests/robust/test_F1_worker_killed.py::test_every_stream_goes_on",
    ),
    (
        KIOSK,
        "A model that kills every worker is quarantined for five minutes.",
        "tests/robust/test_F3_quarantine.py::test_three_crashes",
    ),
    (KIOSK, "It needs a token of its own", f"{ON_KIOSK}::test_every_program_needs_a_token_of_its_own_and_the_watchdog"),
    (SECURITY, "With `--forget` no conversation is written to the disk at all", FORGOTTEN),
    (
        SECURITY,
        "edgeagent writes no core files.",
        "tests/robust/test_A6_secrets.py::test_the_token_is_in_no_arguments_no_environment_and_no_core",
    ),
    (
        SECURITY,
        "Logs, metrics and traces never contain prompts or answers",
        "tests/robust/test_I6_no_content.py::test_neither_logs",
    ),
    (
        SECURITY,
        "A client's only request is never refused for what others hold once it has arrived",
        "tests/daemon/test_in_flight.py::test_the_requests_of_a_client_take_at_most_what_all_leave_free_and_its_first",
    ),
    (SECURITY, "The daemon listens on loopback.", "tests/robust/test_A4_bind.py::test_other_addresses_of_this"),
    (SECURITY, "Only the owner may change the machine, use the network or see other users' work.", ACCESS),
    (
        SECURITY,
        "adds a Unix socket that only the owner's programs can use",
        "tests/robust/test_A5_unix_socket.py::test_another_user_gets",
    ),
    (
        SECURITY,
        "A web page cannot reach the daemon, not even by DNS rebinding",
        "tests/robust/test_A3_origin_host.py::test_other_origins",
    ),
    (
        SECURITY,
        "On an address other than loopback, tokens and TLS are mandatory.",
        "tests/robust/test_A4_bind.py::test_other_addresses_need",
    ),
    (
        SECURITY,
        "A running daemon uses the new token at once.",
        "tests/robust/test_A6_removed_tokens.py::test_the_owners_token",
    ),
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
    (SECURITY, "Nothing leaves the machine unless its owner adds a remote", f"{ON_KIOSK}::test_nothing_leaves"),
    (SECURITY, "Each of these has a row in the ledger before anything is sent.", f"{ON_WAYS}::test_there_is_a_row"),
    (WATCH, "Each batch of spans has a row in", f"{ON_WAYS}::test_there_is_a_row"),
    (SERVICE, "Stored responses and cached prompts are there again after the next start.", CACHED),
    (SERVICE, "live requests have `--drain-s` seconds to finish", "tests/robust/test_F19_drain.py::test_what_outlasts"),
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
    (
        CACHE,
        "Each client has its own cached prompts",
        "tests/integration/test_cache_isolation.py::test_what_a_client_has_asked",
    ),
    (
        CACHE,
        """A request with `"edgeagent": {"store": false}` is not written to disk.""",
        "tests/api/test_unstored.py::test_nothing_of_it_is_written_to_the_disk",
    ),
    (
        CACHE,
        "`store: false` and `no_store: true` do the same.",
        "tests/integration/test_disk_cache_real.py::test_nobody_finds_what_was_anothers_nor_what_was_not_to_be_kept",
    ),
    (CACHE, "Moved tokens are never cached", "tests/engine/test_shift.py::test_whatever_runs_beside_moved_cells"),
    (CACHE, "Prefixes that are unused for seven days are deleted", "tests/robust/test_F13_cache_clock.py::test_unused"),
    (CACHE, "With `--cache-disk-bytes 0` nothing is written", "tests/worker/parent/pool/test_cache_shares.py::test_no"),
    (SERVICE, "After a power loss no lock is left", "tests/robust/test_F5_cache_crash.py::test_killed_at_random"),
    (KIOSK, "again after a failure, or if it hangs", "tests/test_packaging.py::test_the_systemd_units"),
    (PAGE, "With `--forget`, nothing is written to the disk, and they end with the daemon", FORGOTTEN),
    (
        PAGE,
        "The browser is told to load nothing from elsewhere",
        "tests/api/page/test_files.py::test_the_policy_forbids_what_the_page_does_not_need",
    ),
    (TERMINAL, "With `--forget`, the daemon keeps nothing of any chat there.", FORGOTTEN),
    (
        VOICE,
        "It is kept in memory only, and so are its cached prompts.",
        f"{ON_WYOMING}::test_it_is_one_client_and_leaves_no_conversation_behind",
    ),
    (VOICE, "Nothing of it is sent or stored", "tests/api/responses/socket/test_ahead.py::test_any_other_create"),
    (
        REALTIME,
        "No response of it is stored; the prompt cache on disk keeps its prompts, unless `store` is false.",
        "tests/api/realtime/test_session.py::test_it_holds_after_a_delete",
    ),
    (MODELS, "The token is never an argument, and is never logged", "tests/cli/test_pull.py::test_the_hub_s_token_is"),
    (MODELS, "are never unloaded to make room", "tests/worker/parent/pool/test_many_models.py::test_preloaded_models"),
    (
        WATCH,
        "Logs, metrics and traces never contain prompts, answers",
        "tests/robust/test_I6_no_content.py::test_neither_logs",
    ),
    (REMOTE, "If it cannot be written, nothing is sent.", f"{ON_WAYS}::test_without_a_ledger_nothing_is_sent"),
    (REMOTE, "What edgeagent sends for itself has rows too", f"{ON_WAYS}::test_there_is_a_row"),
    (REMOTE, "Without a remote no request leaves the machine.", f"{ON_KIOSK}::test_nothing_leaves_the_machine"),
    (
        REMOTE,
        "A request for `remote_only` is never computed here",
        "tests/api/test_route.py::test_a_request_for_remotes_alone_is_never_computed_here",
    ),
    (
        REMOTE,
        "The key itself is never an argument, and never in edgeagent's files or logs.",
        "tests/integration/test_remote_owner_real.py::test_there_is_a_row_for_each_request_that_leaves",
    ),
    (
        REMOTE,
        "A connection on which the remote acknowledges nothing for `connect_s` is closed",
        "tests/backends/remote/test_ways.py::test_a_connection_that_acknowledges_nothing_is_given_up",
    ),
    (
        REMOTE,
        "Nothing leaves this machine.",
        "tests/router/test_remote_backends.py::test_nothing_of_a_local_only_request_reaches_the_network",
    ),
    (
        REMOTE,
        "does not start if an option names another machine for images, traces or kept answers.",
        "tests/daemon/test_lifecycle.py::test_a_machine_that_keeps_all_to_itself_refuses_what_would_leave",
    ),
    (
        REMOTE,
        "with local_only no image is fetched, and no trace leaves",
        "tests/daemon/test_traces.py::test_what_the_policy_keeps_here_is_not_sent",
    ),
    (
        REMOTE,
        "Nothing else is sent to a remote",
        "tests/backends/remote/test_ways.py::test_rows_and_requests_are_the_same_number",
    ),
    (REMOTE, "which is deleted after 30 days", "tests/egress/test_ledger.py::test_rows_are_kept_for_thirty_days"),
    (
        REMOTE,
        "From then on nothing is sent to it",
        "tests/router/test_remote_backends.py::test_a_remote_that_is_withdrawn_is_cut_off",
    ),
    (
        README,
        "it listens on loopback, nothing leaves the machine, and logs hold no prompts",
        f"{ON_KIOSK}::test_nothing_leaves_the_machine",
    ),
    (
        README,
        "never for a request that is marked `local_only`",
        "tests/router/test_remote_backends.py::test_nothing_of_a_local_only_request_reaches_the_network",
    ),
]


@pytest.mark.parametrize(("page", "sentence", "test"), PROMISES, ids=lambda value: str(value)[-40:])
def test_each_promise_stands_there_and_has_its_test(page: str, sentence: str, test: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert sentence in text, "the page says something else by now"
    file, _, name = test.partition("::")
    assert (ROOT / file).is_file()
    assert name and f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


PAGES = [
    *(README, INDEX, REMOTE, ACCESS_PAGE, CLUSTER, REALTIME, WEBSOCKET),
    *(
        str(path.relative_to(ROOT))
        for folder in ("guides", "howto")
        for path in sorted((ROOT / "docs").glob(f"{folder}/*.md"))
    ),
]
# Sentences with such a word that promise neither privacy nor recovery.
OTHERS = (
    *("Nothing is published yet", "it is never imported", "Nothing is compiled", "never run", "was never tested"),
    *(
        "`none` nothing",
        "shows nothing meanwhile",
        "It changes nothing",
        "The mode, and nothing prevented it",
        "forbids nothing",
        "Nothing is generated",
    ),
    *(
        "If nothing else can serve a request",
        "when nothing else runs",
        "drafts nothing if",
        "in some layers only the last ones",
    ),
    *("the prefixes of models that are not loaded are deleted first",),
    *("was never created", "A code never changes", "keep nothing;", "has nothing else in it"),
)


@pytest.mark.parametrize("page", PAGES)
def test_no_promise_is_left_out(page: str) -> None:
    """A sentence with an absolute word is a promise."""
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    told = [sentence for each, sentence, _ in PROMISES if each == page]
    words = (
        r"[Nn]ever|[Nn]othing|[Nn]one of|[Nn]o \w+ of \w+ (is|are) \w+|in memory only|runs to its end"
        r"|(is|are) (deleted|not written|not stored|not kept)|power (loss|cut)|again after a"
        r"|surviv\w+|no access|has no network|(read|write) only|goes on (by itself|exactly)|does not reset"
        r"|not sent again|after the model's process crashes|it crashes|forgets (at once|the conversation)|0600"
    )
    for found in re.finditer(rf"[^.|:]*\b({words})\b[^.|:]*", text):
        is_sentence = " " in found[0].strip() and not any(other in found[0] for other in OTHERS)
        assert not is_sentence or any(
            sentence.rstrip(".") in found[0] or found[0].strip() in sentence for sentence in told
        ), f"give it a row in PROMISES, or a word in OTHERS: {found[0]}"
