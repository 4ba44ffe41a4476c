"""Checks of the folders: state, prompt cache and models. Pure functions of the facts."""

from __future__ import annotations

from edgeagent.doctor.facts import Facts, Folder
from edgeagent.doctor.findings import Finding, fail, ok, warn
from edgeagent.sizes import size_text

# File systems of other machines. Locks and mapped files may not work there, and reading is slow.
NETWORK_KINDS = ("nfs", "cifs", "smb", "afs", "ceph", "glusterfs", "fuse.sshfs", "9p", "lustre")
MEMORY_KINDS = ("tmpfs", "ramfs")
# Space for what a daemon writes: its runtime file, its token and its database.
_STATE_BYTES = 16_000_000


def check_state(facts: Facts) -> list[Finding]:
    """Check the state folder: its owner and mode, the token in it, its free space and its file system."""
    folder, other = facts.state, "choose another folder with --state-dir"
    if trouble := _unusable("state folder", folder, other):
        return trouble
    if facts.token_problem:
        return fail("state folder", facts.token_problem, "the message above says what to do")
    if folder.is_there and folder.mode & 0o022:
        return fail("state folder", f"{folder.path} can be written by other users", f"run: chmod 700 {folder.path}")
    if folder.is_there and folder.mode & 0o077:
        return warn("state folder", f"{folder.path} can be read by other users", f"run: chmod 700 {folder.path}")
    if folder.free_bytes < _STATE_BYTES:
        text = f"the disk of {folder.path} is full: {size_text(folder.free_bytes)} free"
        return fail("state folder", text, f"free some space, or {other}")
    if folder.file_system.lower().startswith(NETWORK_KINDS):
        text = f"{folder.path} is on a network file system ({folder.file_system}), where locks are not reliable"
        return warn("state folder", text, other)
    return ok("state folder", _described(folder))


def check_cache(facts: Facts) -> list[Finding]:
    """Check the folder of cached prefixes: whether it can be used, its free space and its file system."""
    folder, limits = facts.cache, facts.limits
    remedy = "choose another folder with --cache-dir, or switch it off with --cache-disk-bytes 0"
    if not limits.cache_bytes:
        return ok("cache folder", "switched off: prompts are kept in memory only")
    if trouble := _unusable("cache folder", folder, remedy):
        # Only a warning: without the cache, prompts are computed again after a restart, but nothing fails.
        return [Finding(each.name, "warn", each.text, each.remedy) for each in trouble]
    if folder.free_bytes < limits.min_free_bytes:
        text = (
            f"{size_text(folder.free_bytes)} free on the disk of {folder.path}, less than store.min_free_bytes "
            f"({size_text(limits.min_free_bytes)}): nothing more is kept"
        )
        return warn("cache folder", text, "free some space, or " + remedy)
    kind = folder.file_system.lower()
    if kind.startswith(NETWORK_KINDS):
        return warn("cache folder", f"{folder.path} is on a network file system ({kind}), which is slow", remedy)
    if kind.startswith(MEMORY_KINDS):
        return warn("cache folder", f"{folder.path} is in memory ({kind}): it is lost at a restart", remedy)
    return ok("cache folder", f"{_described(folder)}, {size_text(folder.used_bytes)} kept")


def check_models(facts: Facts) -> list[Finding]:
    """Check the models folder: whether it can be used, its free space and its file system."""
    folder, limits = facts.models, facts.limits
    if trouble := _unusable("models folder", folder, "choose another folder with --models-dir"):
        # Only a warning: models on this machine can still be read.
        return [Finding(each.name, "warn", each.text, each.remedy) for each in trouble]
    if folder.free_bytes < limits.min_free_bytes:
        text = (
            f"{size_text(folder.free_bytes)} free on the disk of {folder.path}, less than a download must leave "
            f"({size_text(limits.min_free_bytes)})"
        )
        return warn("models folder", text, "delete what is not needed: `edgeagent prune`, `edgeagent rm MODEL`")
    if folder.file_system.lower().startswith(NETWORK_KINDS):
        text = f"{folder.path} is on a network file system ({folder.file_system}): models load slowly"
        return warn("models folder", text, "choose a folder on this machine with --models-dir")
    return ok("models folder", _described(folder))


def _unusable(name: str, folder: Folder, remedy: str) -> list[Finding]:
    """Return a list with one finding, which says why a folder cannot be used; an empty list if it can be used."""
    if folder.problem is not None:
        return fail(name, f"{folder.path}: {folder.problem}", remedy)
    if folder.is_there and not folder.is_own:
        return fail(name, f"{folder.path} belongs to another user ({folder.owner})", remedy)
    if not folder.is_writable:
        what = "cannot be written to" if folder.is_there else "cannot be created"
        return fail(name, f"{folder.path} {what}", remedy)
    return []


def _described(folder: Folder) -> str:
    where = f"{folder.path}{'' if folder.is_there else ' (created when it is needed)'}"
    kind = f" on {folder.file_system}" if folder.file_system else ""
    return f"{where}{kind}, {size_text(folder.free_bytes)} of {size_text(folder.total_bytes)} free"
