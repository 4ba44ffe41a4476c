"""Pulls with the real huggingface_hub client from a local server that implements the hub's protocol."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import huggingface_hub
import pytest

from edgeagent.config import StoreConfig
from edgeagent.errors import Forbidden, InvalidRequest, ModelDamaged, ModelNotFound, StoreError
from edgeagent.state_files import try_lock
from edgeagent.store.file_records import VERIFIED_FILE
from edgeagent.store.hub import pull
from edgeagent.store.hub import pull as hub_module
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.hub.client import HubUnreachable
from edgeagent.store.hub.pull import Progress, Puller
from edgeagent.store.library import Library
from edgeagent.store.names import catalog
from edgeagent.store.names.catalog import CatalogEntry
from edgeagent.store.projectors import find_projector
from edgeagent.types import replace
from tests.hub_server import HubServer, sha256
from tests.store.gguf_bytes import small_model, split_model

REPO = "org/model-GGUF"
SMALL = small_model(1, 200_000)
FILE = "model-Q4_K_M.gguf"


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


def cached(store: StoreConfig) -> set[str]:
    """Return the names of files in the cache, without locks and marker files."""
    assert store.models_dir is not None
    paths = (path.relative_to(store.models_dir) for path in store.models_dir.rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if path.parts[0].startswith("models--")}


def published(store: StoreConfig) -> set[str]:
    return {name for name in cached(store) if "/snapshots/" in name}


def test_a_machine_policy_may_forbid_pulls(
    machine_policy: Path, hub: HubServer, puller: Puller, store: StoreConfig
) -> None:
    hub.add(REPO, {FILE: SMALL})
    for text in ("pulls = false", "no policy"):
        machine_policy.write_text(text)
        machine_policy.chmod(0o644)
        with pytest.raises(Forbidden, match=re.escape(str(machine_policy))):
            puller.pull(REPO)
        assert hub.requests == [] and not cached(store)
        assert puller.pull("builtin").downloaded_bytes == 0
    machine_policy.write_text("pulls = true")
    assert puller.pull(REPO).downloaded_bytes == len(SMALL)


def test_a_fresh_pull(hub: HubServer, puller: Puller, store: StoreConfig, library: Library) -> None:
    hub.add(REPO, {FILE: SMALL, "README.md": b"hello"})
    seen: list[Progress] = []
    pulled = puller.pull(REPO, seen.append)
    assert pulled.name == f"{REPO}:Q4_K_M"
    assert [path.read_bytes() for path in pulled.paths] == [SMALL]
    assert (pulled.size_bytes, pulled.downloaded_bytes, pulled.is_current) == (len(SMALL), len(SMALL), True)
    assert seen[-1] == Progress("verifying", FILE, len(SMALL), len(SMALL), 0, sha256(SMALL))
    downloading = [progress.done_bytes for progress in seen if progress.stage == "downloading"]
    assert downloading == sorted(downloading) and downloading[-1] == len(SMALL)
    blob = f"models--org--model-GGUF/blobs/{sha256(SMALL)}"
    assert cached(store) == {
        blob,
        f"models--org--model-GGUF/snapshots/{'a' * 40}/{FILE}",
        "models--org--model-GGUF/refs/main",
    }
    assert library.resolve(REPO).paths == pulled.paths


def test_a_pull_that_waits_for_another_process_can_be_stopped(
    hub: HubServer, puller: Puller, store: StoreConfig
) -> None:
    hub.add(REPO, {FILE: SMALL})
    stages: list[str] = []

    def stop_at_the_third(progress: Progress) -> None:
        stages.append(progress.stage)
        if len(stages) == 3:
            raise KeyboardInterrupt

    lock = HubCache.of(store).lock(REPO, sha256(SMALL))
    lock.parent.mkdir(parents=True)
    with lock.open("w") as file:
        assert try_lock(file.fileno())
        with pytest.raises(KeyboardInterrupt):
            puller.pull(REPO, stop_at_the_third)
    assert stages == ["waiting"] * 3
    assert puller.pull(REPO).downloaded_bytes == len(SMALL)


def test_other_programs_find_what_was_pulled(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL})
    path = puller.pull(REPO).paths[0]
    huggingface_hub.close_session()  # another program has its own
    num_requests = len(hub.requests)
    found = huggingface_hub.hf_hub_download(REPO, FILE, cache_dir=store.models_dir, local_files_only=True)
    assert Path(found).samefile(path)
    found = huggingface_hub.hf_hub_download(REPO, FILE, cache_dir=store.models_dir, endpoint=hub.url, token=False)
    assert Path(found).samefile(path)
    assert not [request for request in hub.requests[num_requests:] if request.method == "GET"]
    report = huggingface_hub.scan_cache_dir(store.models_dir)
    assert not report.warnings and report.size_on_disk == len(SMALL)


def test_what_other_programs_downloaded_is_verified_and_not_fetched_again(
    hub: HubServer, puller: Puller, store: StoreConfig, library: Library
) -> None:
    hub.add(REPO, {FILE: SMALL})
    huggingface_hub.hf_hub_download(REPO, FILE, cache_dir=store.models_dir, endpoint=hub.url, token=False)
    assert library.resolve(f"{REPO}:q4_k_m").path.read_bytes() == SMALL
    num_sent = hub.sent_bytes
    pulled = puller.pull(REPO)
    assert (pulled.downloaded_bytes, hub.sent_bytes) == (0, num_sent)


def test_a_second_pull_asks_once_and_reads_nothing(
    hub: HubServer, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, {FILE: SMALL})
    first = puller.pull(REPO)
    hub.requests.clear()
    monkeypatch.setattr(hub_module, "file_sha256", None)
    monkeypatch.setattr("edgeagent.store.file_records.file_sha256", None)
    second = puller.pull(REPO)
    assert (second.paths, second.downloaded_bytes) == (first.paths, 0)
    assert [request.path for request in hub.requests] == [f"/api/models/{REPO}"]


def test_a_new_commit_with_the_same_file_is_not_downloaded(hub: HubServer, puller: Puller, library: Library) -> None:
    repo = hub.add(REPO, {FILE: SMALL})
    puller.pull(REPO)
    repo.commit = "c" * 40
    sent = hub.sent_bytes
    assert "c" * 40 in str(puller.pull(REPO).paths[0])
    assert hub.sent_bytes == sent
    assert "c" * 40 in str(library.resolve(REPO).path)


def test_a_cut_connection_is_continued_where_it_ended(hub: HubServer, puller: Puller) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.cut_after, hub.faults.num_cuts = 60_000, 2
    pulled = puller.pull(REPO)
    assert pulled.paths[0].read_bytes() == SMALL
    assert [request.byte_range for request in hub.asked("GET", "storage")] == [None, "bytes=60000-", "bytes=120000-"]
    assert hub.sent_bytes == pulled.downloaded_bytes == len(SMALL)


def test_a_pull_that_gave_up_is_resumed_by_the_next(
    hub: HubServer, puller: Puller, store: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.cut_after, hub.faults.num_cuts = 90_000, 1
    monkeypatch.setattr(pull, "MAX_FRUITLESS_TRIES", 1)
    hub.faults.storage_status = 503
    seen: list[Progress] = []

    def break_storage(progress: Progress) -> None:
        hub.faults.num_storage_failures = 10

    with pytest.raises(StoreError, match=r"90000 of .* bytes are kept; pull again"):
        puller.pull(REPO, break_storage)
    assert not published(store)
    hub.faults.num_storage_failures = 0
    before = hub.sent_bytes
    pulled = puller.pull(REPO, seen.append)
    assert pulled.paths[0].read_bytes() == SMALL
    assert hub.sent_bytes - before == pulled.downloaded_bytes == len(SMALL) - 90_000
    assert seen[0].resumed_bytes == 90_000


@pytest.mark.parametrize("fault", ["ignore_range", "wrong_range", "refuse_range"])
def test_a_server_that_cannot_continue_is_begun_anew(hub: HubServer, puller: Puller, fault: str) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.cut_after, hub.faults.num_cuts = 60_000, 1
    setattr(hub.faults, fault, True)
    pulled = puller.pull(REPO)
    assert pulled.paths[0].read_bytes() == SMALL
    assert pulled.downloaded_bytes == len(SMALL) + 60_000


def test_a_wrong_sha256_is_deleted_and_never_published(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.corrupt = True
    with pytest.raises(StoreError, match="arrived with another sha256"):
        puller.pull(REPO)
    assert cached(store) == set()
    hub.faults.corrupt = False
    assert puller.pull(REPO).paths[0].read_bytes() == SMALL


def test_a_wrong_partial_file_is_begun_anew(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL})
    partial = HubCache.of(store).partial(REPO, sha256(SMALL))
    partial.parent.mkdir(parents=True)
    for content in (bytes(50_000), bytes(len(SMALL)), bytes(len(SMALL) + 9)):
        partial.write_bytes(content)
        pulled = puller.pull(REPO)
        assert pulled.paths[0].read_bytes() == SMALL
        shutil.rmtree(partial.parent.parent / "snapshots")
        HubCache.of(store).blob(REPO, sha256(SMALL)).unlink()


def test_a_damaged_blob_is_refused_and_pulled_again(
    hub: HubServer, puller: Puller, store: StoreConfig, library: Library
) -> None:
    hub.add(REPO, {FILE: SMALL})
    path = puller.pull(REPO).paths[0]
    HubCache.of(store).blob(REPO, sha256(SMALL)).write_bytes(bytes(len(SMALL)))
    for _ in range(2):
        with pytest.raises(ModelDamaged, match=r"is damaged.*edgeagent pull org/model-GGUF"):
            library.resolve(REPO)
    assert puller.pull(REPO).downloaded_bytes == len(SMALL)
    assert library.resolve(REPO).path.read_bytes() == path.read_bytes() == SMALL


def test_an_endless_body_is_cut_at_the_announced_size(hub: HubServer, puller: Puller) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.endless = True
    assert puller.pull(REPO).paths[0].stat().st_size == len(SMALL)


def test_a_body_larger_than_listed_is_cut_and_refused(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL}, listed={FILE: {"size": 1000}})
    with pytest.raises(StoreError, match="another sha256"):
        puller.pull(REPO)
    assert cached(store) == set()


def test_a_body_that_is_always_too_short(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL}, listed={FILE: {"size": len(SMALL) + 1000}})
    with pytest.raises(StoreError, match=f"{len(SMALL)} of {len(SMALL) + 1000} bytes are kept"):
        puller.pull(REPO)
    assert not published(store)


def test_a_compressed_body_is_not_taken(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.compress = True
    with pytest.raises(StoreError, match="compresses"):
        puller.pull(REPO)
    assert not published(store)


def test_expired_addresses_are_asked_for_again(hub: HubServer, puller: Puller) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.storage_status, hub.faults.num_storage_failures = 403, 2
    assert puller.pull(REPO).paths[0].read_bytes() == SMALL
    assert len(hub.asked("HEAD", "hub")) == 3


def test_a_hub_that_offers_other_content_than_it_lists(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.other_etag = True
    with pytest.raises(StoreError, match=r"lists .* with sha256"):
        puller.pull(REPO)
    assert cached(store) == set()


def test_a_disk_that_is_too_small_is_noticed_before_the_first_byte(
    hub: HubServer, store: StoreConfig, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, {FILE: SMALL})
    strict = replace(store, min_free_bytes=1_000_000)
    puller = Puller(strict, state_dir, endpoint=hub.url)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(9, 9, 1_000_000 + len(SMALL) - 1))
    with pytest.raises(StoreError, match=r"does not fit: 200.7 kB are to be downloaded, 1.0 MB must stay free"):
        puller.pull(REPO)
    assert not hub.asked("HEAD") and cached(store) == set()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(9, 9, 1_000_000 + len(SMALL)))
    assert puller.pull(REPO).downloaded_bytes == len(SMALL)


def test_what_is_on_disk_already_needs_no_space(
    hub: HubServer, puller: Puller, store: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, {FILE: SMALL})
    partial = HubCache.of(store).partial(REPO, sha256(SMALL))
    partial.parent.mkdir(parents=True)
    partial.write_bytes(SMALL[:150_000])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(9, 9, len(SMALL) - 150_000))
    assert puller.pull(REPO).downloaded_bytes == len(SMALL) - 150_000


def test_a_disk_that_fills_up_meanwhile_stops_the_download(
    hub: HubServer, store: StoreConfig, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pieces arrive in any size up to some 100 kB, so the file has a few MB.
    content = small_model(1, 2_000_000)
    hub.add(REPO, {FILE: content})
    puller = Puller(replace(store, min_free_bytes=1000), state_dir, endpoint=hub.url)
    monkeypatch.setattr(pull, "_SPACE_CHECK_BYTES", 50_000)
    free = iter([10_000_000, 5000, 999])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(9, 9, next(free)))
    with pytest.raises(StoreError, match=r"only 999 B are free on the disk of \S+ and 1.0 kB must stay free"):
        puller.pull(REPO)
    kept = HubCache.of(store).partial(REPO, sha256(content)).stat().st_size
    assert 100_000 <= kept < len(content)


def test_a_disk_that_is_full_says_so(hub: HubServer, puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    hub.add(REPO, {FILE: SMALL})
    monkeypatch.setattr(pull.Transfer, "_write", write)
    with pytest.raises(StoreError, match=r"the disk became full while org/model-GGUF .* is kept"):
        puller.pull(REPO)


def test_a_cache_that_cannot_be_written(hub: HubServer, state_dir: Path, tmp_path: Path) -> None:
    hub.add(REPO, {FILE: SMALL})
    (tmp_path / "file").write_bytes(b"")
    store = StoreConfig(models_dir=tmp_path / "file" / "cache", min_free_bytes=0)
    with pytest.raises(StoreError, match="org/model-GGUF cannot be stored"):
        Puller(store, state_dir, endpoint=hub.url).pull(REPO)


def test_a_record_of_verified_files_that_cannot_be_written_only_costs_time(
    hub: HubServer, puller: Puller, state_dir: Path
) -> None:
    hub.add(REPO, {FILE: SMALL})
    (state_dir / VERIFIED_FILE).mkdir(parents=True)
    assert puller.pull(REPO).downloaded_bytes == len(SMALL)
    assert puller.pull(REPO).downloaded_bytes == 0


@pytest.mark.parametrize(
    "location", ["http://[", "ftp://127.0.0.1/x", "http://127.0.0.1:9/x", "http://127.0.0.1:99999/"]
)
def test_an_address_that_leads_nowhere(hub: HubServer, puller: Puller, store: StoreConfig, location: str) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.location = location
    with pytest.raises(StoreError):
        puller.pull(REPO)
    assert not published(store)


def test_split_models_come_whole(hub: HubServer, puller: Puller, library: Library) -> None:
    parts = split_model(3)
    files = {f"Q8_0/big-Q8_0-{no:05d}-of-00003.gguf": part for no, part in enumerate(parts, start=1)}
    hub.add(REPO, {**files, "big-Q4_0.gguf": SMALL})
    pulled = puller.pull(f"{REPO}:Q8_0")
    assert [path.read_bytes() for path in pulled.paths] == parts
    assert len({path.parent for path in pulled.paths}) == 1
    assert pulled.size_bytes == pulled.downloaded_bytes == sum(map(len, parts))
    assert library.resolve(f"{REPO}/Q8_0/big-Q8_0-00002-of-00003.gguf").paths == pulled.paths
    assert library.resolve(REPO).paths == pulled.paths


def test_the_choice_of_a_quantization(hub: HubServer, puller: Puller) -> None:
    quants = ("Q8_0", "Q4_K_M", "Q2_K", "F16")
    hub.add(
        REPO, {f"m.{quant}.gguf": small_model(no) for no, quant in enumerate(quants)} | {"mmproj-m-F16.gguf": SMALL}
    )
    assert puller.pull(REPO).name == f"{REPO}:Q4_K_M"
    assert puller.pull(f"{REPO}:q8_0").name == f"{REPO}:Q8_0"
    assert puller.pull(f"{REPO}/m.F16.gguf").name == f"{REPO}:F16"
    with pytest.raises(ModelNotFound, match=f"no Q5_0 .* it has {REPO}:F16, {REPO}:Q2_K"):
        puller.pull(f"{REPO}:Q5_0")
    with pytest.raises(ModelNotFound, match=r"no complete model other\.gguf"):
        puller.pull(f"{REPO}/other.gguf")


def test_a_missing_repository(hub: HubServer, puller: Puller) -> None:
    with pytest.raises(ModelNotFound, match="has no repository org/none, or it is private"):
        puller.pull("org/none")


def test_a_gated_repository_to_which_an_account_has_no_access(hub: HubServer, puller: Puller) -> None:
    hub.add(REPO, {FILE: SMALL}, gated=True, gated_status=403)
    hub.repos[REPO].token = "another"
    with pytest.raises(StoreError, match="is gated: accept its terms"):
        puller.pull(REPO)


def test_the_login_of_the_hub_s_own_program_is_used(
    hub: HubServer, store: StoreConfig, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hf_test_token\n")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    hub.add(REPO, {FILE: SMALL}, gated=True)
    assert Puller(store, state_dir, endpoint=hub.url).pull(REPO).downloaded_bytes == len(SMALL)


def test_a_server_that_falls_silent_is_asked_again_for_the_rest(
    hub: HubServer, puller: Puller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.add(REPO, {FILE: SMALL})
    hub.faults.hold_after, hub.faults.num_holds = 81_920, 1
    assert puller.pull(REPO).paths[0].read_bytes() == SMALL
    first, *others = hub.asked("GET", "storage")
    assert first.byte_range is None and others and all(request.byte_range is not None for request in others)


def test_a_hub_that_redirects_for_ever(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.location = f"{hub.url}/{REPO}/resolve/{'a' * 40}/{FILE}"
    with pytest.raises(StoreError):
        puller.pull(REPO)
    assert not published(store)


def test_a_repository_without_models(hub: HubServer, puller: Puller) -> None:
    hub.add(REPO, {"README.md": b"", "torn-00001-of-00002.gguf": SMALL})
    with pytest.raises(ModelNotFound, match="holds no GGUF model"):
        puller.pull(REPO)


def test_a_gated_repository_says_what_to_do(
    hub: HubServer, store: StoreConfig, state_dir: Path, puller: Puller
) -> None:
    hub.add(REPO, {FILE: SMALL}, gated=True)
    stranger = Puller(store, state_dir, endpoint=hub.url, token="hf_other")
    with pytest.raises(StoreError, match=f"is gated: accept its terms at {hub.url}/{REPO}, then log in") as refusal:
        stranger.pull(REPO)
    assert "`hf auth login`" in str(refusal.value) and "hf_other" not in str(refusal.value)
    assert puller.pull(REPO).downloaded_bytes == len(SMALL)


@pytest.mark.parametrize(
    "status, message",
    [
        (401, "refuses access .*401.*HF_TOKEN"),
        (403, "refuses access .*403.*HF_TOKEN"),
        (429, "allows no more requests"),
        (500, "answered 500"),
    ],
)
def test_refusals_of_the_hub(hub: HubServer, puller: Puller, status: int, message: str) -> None:
    hub.faults.status = status
    with pytest.raises((StoreError, ModelNotFound), match=message):
        puller.pull(REPO)


@pytest.mark.parametrize(
    "listing", [b"<html>Sign in</html>", b"[]", b"{}", b'{"id": "x", "sha": 5}', b'{"siblings": "abc"}']
)
def test_something_that_is_not_a_hub(hub: HubServer, puller: Puller, listing: bytes) -> None:
    hub.add(REPO, {FILE: SMALL})
    hub.faults.raw_listing = listing
    with pytest.raises(StoreError, match="does not answer as a hub"):
        puller.pull(REPO)


HOSTILE_FILES: list[dict[str, object]] = [
    {"rfilename": "../../evil.gguf"},
    {"rfilename": "/etc/evil.gguf"},
    {"rfilename": "a/../../evil.gguf"},
    {"rfilename": "..\\evil.gguf"},
    {"rfilename": "CON.gguf"},
    {"rfilename": "nul\0.gguf"},
    {"rfilename": "x" * 5000 + ".gguf"},
    {"rfilename": 7},
    {"rfilename": "short.gguf", "lfs": {"sha256": "abc", "size": 5, "pointerSize": 1}},
    {"rfilename": "path.gguf", "lfs": {"sha256": "../" * 21 + "x", "size": 5, "pointerSize": 1}},
    {"rfilename": "negative.gguf", "lfs": {"sha256": "a" * 64, "size": -5, "pointerSize": 1}},
    {"rfilename": "huge.gguf", "lfs": {"sha256": "a" * 64, "size": 1 << 60, "pointerSize": 1}},
    {"rfilename": "unhashed.gguf", "size": 10, "lfs": None},
]


def test_a_hostile_list_of_files_is_left_out(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    lfs = {"sha256": "a" * 64, "size": 5, "pointerSize": 1}
    hub.add(
        REPO,
        {FILE: SMALL},
        extra_siblings=[{"lfs": lfs, **sibling} for sibling in HOSTILE_FILES[:8]] + HOSTILE_FILES[8:],
    )
    assert puller.pull(REPO).name == f"{REPO}:Q4_K_M"
    assert len(published(store)) == 1


@pytest.mark.parametrize("commit", ["../../../../evil", "A" * 40, "a" * 39, ""])
def test_a_hostile_commit(hub: HubServer, puller: Puller, store: StoreConfig, commit: str) -> None:
    hub.add(REPO, {FILE: SMALL}, commit=commit)
    with pytest.raises(StoreError, match="does not answer as a hub"):
        puller.pull(REPO)
    assert cached(store) == set()


def test_the_token_goes_to_the_hub_alone(hub: HubServer, puller: Puller) -> None:
    hub.add(REPO, {FILE: SMALL})
    puller.pull(REPO)
    assert {request.authorization for request in hub.requests if request.host == "hub"} == {"Bearer hf_test_token"}
    storage = [request for request in hub.requests if request.host == "storage"]
    assert storage and {request.authorization for request in storage} == {None}


def test_a_hub_that_sends_content_itself(hub: HubServer, puller: Puller) -> None:
    hub.redirect = False
    hub.add(REPO, {FILE: SMALL}, gated=True)
    assert puller.pull(REPO).paths[0].read_bytes() == SMALL


def test_without_a_network(hub: HubServer, puller: Puller, store: StoreConfig, state_dir: Path) -> None:
    hub.add(REPO, {FILE: SMALL})
    puller.pull(REPO)
    offline = Puller(store, state_dir, endpoint="http://127.0.0.1:9")
    pulled = offline.pull(REPO)
    assert (pulled.is_current, pulled.downloaded_bytes, pulled.paths[0].read_bytes()) == (False, 0, SMALL)
    for name in (f"{REPO}:Q8_0", "org/another"):
        with pytest.raises(HubUnreachable, match=r"http://127.0.0.1:9 cannot be reached .*`edgeagent list`"):
            offline.pull(name)


def test_offline_by_option(hub: HubServer, puller: Puller, store: StoreConfig, state_dir: Path) -> None:
    hub.add(REPO, {FILE: SMALL})
    offline = Puller(store, state_dir, endpoint=hub.url, offline=True)
    with pytest.raises(HubUnreachable, match="with --offline the hub is not asked"):
        offline.pull(REPO)
    assert hub.requests == []
    puller.pull(REPO)
    num_requests = len(hub.requests)
    assert (offline.pull(REPO).downloaded_bytes, len(hub.requests)) == (0, num_requests)


def test_offline_mode(hub: HubServer, puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: True)
    with pytest.raises(HubUnreachable, match="HF_HUB_OFFLINE is set"):
        puller.pull(REPO)


def test_an_interrupt_keeps_what_came_and_publishes_nothing(hub: HubServer, puller: Puller, store: StoreConfig) -> None:
    hub.add(REPO, {FILE: SMALL})

    def interrupt(progress: Progress) -> None:
        if progress.done_bytes > 80_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        puller.pull(REPO, interrupt)
    kept = HubCache.of(store).partial(REPO, sha256(SMALL)).stat().st_size
    assert kept > 80_000 and not published(store)
    assert puller.pull(REPO).downloaded_bytes == len(SMALL) - kept


def test_where_links_are_not_to_be_had(
    hub: HubServer, puller: Puller, library: Library, store: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise OSError("links are not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    hub.add(REPO, {FILE: SMALL})
    path = puller.pull(REPO).paths[0]
    assert not path.is_symlink() and puller.pull(REPO).downloaded_bytes == 0
    assert library.resolve(REPO).path == path
    path.write_bytes(bytes(len(SMALL)))
    for _ in range(2):
        with pytest.raises(ModelDamaged, match="is damaged"):
            library.resolve(REPO)


def test_the_record_of_verified_files_is_small_and_may_be_lost(hub: HubServer, puller: Puller, state_dir: Path) -> None:
    hub.add(REPO, {FILE: SMALL})
    puller.pull(REPO)
    record = json.loads((state_dir / "verified.json").read_text())
    assert [fields[3] for fields in record.values()] == [sha256(SMALL)]
    for content in ("", "[]", '{"x": 1}', '{"x": [1, 2, 3]}', "\0"):
        (state_dir / "verified.json").write_text(content)
        assert puller.pull(REPO).downloaded_bytes == 0


def test_catalog_names_and_their_pins(hub: HubServer, puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, {"m-Q4_0.gguf": SMALL, "m-Q8_0.gguf": small_model(5)})
    entry = CatalogEntry("short", REPO, "MIT", quant="Q8_0", draft="tiny", sha256=sha256(small_model(5)))
    monkeypatch.setattr(catalog, "load_catalog", lambda: {"short": entry})
    pulled = puller.pull("short")
    assert (pulled.name, pulled.draft) == ("short", "tiny")
    assert (puller.pull("short:Q4_0").name, puller.pull(f"{REPO}:Q4_0").draft) == ("short:Q4_0", "tiny")
    hub.repos[REPO].files["m-Q8_0.gguf"] = small_model(6)
    with pytest.raises(StoreError, match="the catalog pins"):
        puller.pull("short")
    with pytest.raises(ModelNotFound, match="no model of the catalog is called long"):
        puller.pull("long")


def test_names_that_are_not_pulled(puller: Puller, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is a path"):
        puller.pull(str(tmp_path / "x.gguf"))
    with pytest.raises(InvalidRequest, match="without the address"):
        puller.pull("https://huggingface.co/org/repo")


def test_a_projector_is_pulled_with_its_model(
    hub: HubServer, puller: Puller, store: StoreConfig, library: Library
) -> None:
    """One progress counts both files, and both are verified. It goes with the last model of its repository."""
    projector = b"GGUF" + bytes(5000)
    hub.add(REPO, {FILE: SMALL, "mmproj-model-Q8_0.gguf": projector, "mmproj-model-f16.gguf": bytes(9000)})
    seen: list[Progress] = []
    pulled = puller.pull(REPO, seen.append)
    assert pulled.projector is not None and pulled.projector.read_bytes() == projector
    assert pulled.size_bytes == pulled.downloaded_bytes == len(SMALL) + len(projector)
    assert seen[-1].done_bytes == seen[-1].total_bytes == pulled.size_bytes
    found = library.find(REPO)
    assert found.paths == pulled.paths and find_projector(found.path) == pulled.projector
    library.verify(found, REPO)
    blob = pulled.projector.resolve()
    blob.write_bytes(bytes(len(projector)))
    with pytest.raises(ModelDamaged, match="mmproj-model-Q8_0"):
        library.verify(found, REPO)
