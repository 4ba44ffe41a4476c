"""Records each request in the ledger before it is sent, and keeps the day's budgets.

The daemon uses this module, and so do commands that send something themselves.

A line is one write to the page cache, which takes some microseconds. So the line is in the file when the caller
continues, and it survives a crash of the daemon. A request whose row cannot be written must not be sent, and nothing
may be sent while the day's sums cannot be read.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from edgeagent import metrics
from edgeagent.egress import KEPT_DAYS, OWN_REASONS, PROBE, Carried, RowEnd, RowStart
from edgeagent.egress.rows import day_of, delete_old, encoded, file_of, folder_of, read_lines, time_text
from edgeagent.egress.spending import ALL, Spending, Spent, cost, need_of, tokens_left, why_over_budget
from edgeagent.errors import ConfigError, EdgeAgentError, InvalidRequest, RemoteUnavailable, StoreError
from edgeagent.remotes import Budget, Price, Remote
from edgeagent.runtime_file import check_private
from edgeagent.state_files import check_folder, open_own
from edgeagent.types import Permit, ProbePermit, remote_backend

MAX_TEXT = 512
# One of edgeagent's own words, or an error's code. Free text could quote a prompt.
_OUTCOME = re.compile(r"[a-z0-9_]{1,64}")

logger = logging.getLogger(__name__)
# The daemon logs this. A command prints it instead.
logger.addHandler(logging.NullHandler())


class Ledger:
    """Records, in a state folder, what left the machine. Use an instance on one thread at a time.

    Each row is appended to the file of its day.
    """

    def __init__(
        self,
        state_dir: Path,
        find_remote: Callable[[str], Remote | None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        *,
        ceiling: Callable[[], Budget] = Budget,
    ) -> None:
        """`find_remote` finds a remote by its name, for its price and its budget.

        A ledger of what edgeagent sends for itself needs none. `ceiling` returns the budget for all remotes together.
        """
        self._ceiling = ceiling
        self._folder = folder_of(state_dir)
        self._find_remote = find_remote
        self._clock = clock
        self._day = ""
        self._spending = Spending()
        self._file: int | None = None
        self._inode: tuple[int, int] = (0, 0)
        self._last_row = 0
        self._open: dict[int, RowStart] = {}
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why nothing may be sent to a remote; empty if nothing is wrong. The next successful `begin` clears it."""
        return self._trouble

    def open(self) -> None:
        """Read the day's sums now, so that the first request does not wait while many rows are read.

        If they cannot be read, `trouble` says why.
        """
        try:
            self._turn_to(self._clock())
        except (OSError, ConfigError) as error:
            self._troubled(error)

    def begin(
        self,
        permit: Permit | ProbePermit,
        host: str,
        model: str,
        num_bytes: int,
        num_prompt_tokens: int = 0,
        max_tokens: int = 0,
    ) -> int:
        """Write the row of a request or a probe that is about to be sent, and return the row's number.

        `num_bytes` is the length of the request's body, `num_prompt_tokens` the estimated length of its prompt, and
        `max_tokens` the most tokens that its answer may have; 0 if there is no limit. Until `end`, the budgets count
        with all of these tokens.

        Raise RemoteUnavailable if the budgets do not allow this, or if the row cannot be written. Then nothing may be
        sent.
        """
        is_probe = isinstance(permit, ProbePermit)
        request_id, client, reason = "", "", PROBE
        if not isinstance(permit, ProbePermit):
            request_id, client, reason = permit.request_id, permit.client, permit.reason
        try:
            self._turn_to(self._clock())
            if not is_probe and (why := self._why_over_budget(permit.remote, client, num_prompt_tokens, max_tokens)):
                backend = remote_backend(permit.remote)
                raise RemoteUnavailable(f"{backend}: {why}", served_by=backend)
            row = self._begin(
                RowStart(
                    0,
                    "",
                    request_id[:MAX_TEXT],
                    client,
                    permit.mode.value,
                    reason[:MAX_TEXT],
                    permit.remote,
                    host,
                    model[:MAX_TEXT],
                    num_bytes,
                    num_prompt_tokens,
                    max_tokens,
                )
            )
        except (OSError, ConfigError) as error:
            raise RemoteUnavailable(self._troubled(error)) from None
        if not is_probe:
            metrics.remote_sent_bytes_total.labels(permit.remote).inc(num_bytes)
        return row

    def begin_own(self, reason: str, url: str, model: str = "", num_bytes: int = 0, client: str = "") -> int:
        """Write the row of something that edgeagent is about to send for itself, and return the row's number.

        `reason` is one of OWN_REASONS, `model` what is pulled or measured, and `client` who asked for a fetch. The row
        has the host of `url`, without user and password. Raise StoreError if the row cannot be written. Then nothing
        may be sent.
        """
        assert reason in OWN_REASONS
        host = urlsplit(url).netloc.rpartition("@")[2]
        try:
            start = RowStart(0, "", "", client, "", reason, "", host[:MAX_TEXT], model[:MAX_TEXT], num_bytes)
            return self._begin(start)
        except (OSError, ConfigError) as error:
            raise StoreError(self._troubled(error)) from None

    def _begin(self, start: RowStart) -> int:
        """Number and date a row, and write it. Raise ConfigError or OSError if it cannot be written."""
        now_s = self._clock()
        self._turn_to(now_s)
        row = self._last_row = max(self._last_row + 1, int(now_s * 1e6))
        line = msgspec.structs.replace(start, row=row, at=time_text(now_s))
        self._append(line)
        self._trouble = ""
        self._open[row] = line
        self._spending.add(line, self._price(line.remote))
        return row

    def end(
        self,
        row: int,
        outcome: str,
        num_prompt_tokens: int = 0,
        num_output_tokens: int = 0,
        *,
        differs: bool = False,
    ) -> None:
        """Write a row's outcome and its tokens; for `differs` see RowEnd. A row that has already ended is not changed.

        If the line cannot be written, `trouble` says why, and the tokens still count against the budgets.
        """
        start = self._open.pop(row, None)
        if start is None:
            return
        now_s = self._clock()
        outcome = outcome if _OUTCOME.fullmatch(outcome) else "unknown"
        money = cost(self._price(start.remote), num_prompt_tokens, num_output_tokens)
        line = RowEnd(
            row,
            time_text(now_s),
            start.remote,
            start.client,
            outcome,
            num_prompt_tokens,
            num_output_tokens,
            money,
            differs,
        )
        try:
            self._turn_to(now_s)
            self._append(line)
        except (OSError, ConfigError) as error:
            self._troubled(error)
        # The tokens were spent even if the line could not be written.
        self._spending.add(line)
        if start.reason == PROBE or not start.remote:
            return
        metrics.remote_requests_total.labels(start.remote, outcome).inc()
        metrics.remote_tokens_total.labels(start.remote, "prompt").inc(num_prompt_tokens)
        metrics.remote_tokens_total.labels(start.remote, "output").inc(num_output_tokens)
        metrics.remote_money_total.labels(start.remote).inc(money)

    def why_blocked(self, remote: str, client: str, num_prompt_tokens: int = 0, max_tokens: int = 0) -> str | None:
        """Return why a client may not send this much to a remote today; None if it may. See `begin`."""
        if self._find_remote(remote) is None:
            return f"there is no remote {remote!r}"
        try:
            self._turn_to(self._clock())
        except (OSError, ConfigError) as error:
            return self._troubled(error)
        return self._why_over_budget(remote, client, num_prompt_tokens, max_tokens)

    def _why_over_budget(self, remote: str, client: str, num_prompt_tokens: int, max_tokens: int) -> str | None:
        need = need_of(self._price(remote), num_prompt_tokens, max_tokens)
        for name, budget in self._budgets(remote):
            if why := why_over_budget(name, budget, self._spending, client, need):
                return why
        return None

    def _budgets(self, remote: str) -> list[tuple[str, Budget]]:
        found = self._find_remote(remote)
        return [(remote, found.budget if found is not None else Budget()), (ALL, self._ceiling())]

    def tokens_left(self, remote: str, client: str, num_prompt_tokens: int) -> int | None:
        """Return how many tokens the answer to a prompt of this length may have; None if no budget limits it."""
        price = self._price(remote)
        left = [
            tokens_left(name, budget, self._spending, client, price, num_prompt_tokens)
            for name, budget in self._budgets(remote)
        ]
        return min((each for each in left if each is not None), default=None)

    def spent(self, remote: str) -> Spent:
        """Return what all clients together have spent at a remote today. Set `trouble` if that is unknown."""
        try:
            self._turn_to(self._clock())
        except (OSError, ConfigError) as error:
            self._troubled(error)
        return self._spending.of(remote)

    def close(self) -> None:
        """Close the file. Rows that have not ended stay unfinished."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _price(self, remote: str) -> Price:
        found = self._find_remote(remote)
        return found.price if found is not None else Price()

    def _turn_to(self, now_s: float) -> None:
        """If a new day has begun, read its sums and delete files that are too old.

        Raise ConfigError or OSError if the day's file cannot be read.
        """
        day = day_of(now_s)
        if day == self._day:
            return
        spending = Spending()
        for line in read_lines(file_of(self._folder, day)):
            # Row numbers stay unique if the clock is set back.
            if not isinstance(line, Carried):
                self._last_row = max(self._last_row, line.row)
            spending.add(line, self._price(line.remote))
        self._spending, self._day = spending, day
        self.close()
        try:
            delete_old(self._folder, now_s, KEPT_DAYS)
        except ConfigError as error:
            logger.warning("the egress ledger: %s", error.message)

    def _append(self, line: RowStart | RowEnd) -> None:
        content = encoded(line)
        if self._file is None or self._inode != _inode(file_of(self._folder, self._day)):
            self._reopen()
        assert self._file is not None, "it was opened, or that raised"
        if os.write(self._file, content) != len(content):
            # The disk is full and has only a part of the line. Reopening makes the next line begin on its own.
            self.close()
            raise OSError(0, "the disk is full")

    def _reopen(self) -> None:
        """Open the day's file, and end a line that a crash has cut off.

        Raise ConfigError or OSError if the file cannot be opened, or if other users could have read or written it.
        """
        self.close()
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        check_folder(self._folder)
        path = file_of(self._folder, self._day)
        descriptor = open_own(path, os.O_APPEND)
        try:
            status = os.fstat(descriptor)
            check_private(path, status)
            if status.st_size:
                os.lseek(descriptor, -1, os.SEEK_END)
                if os.read(descriptor, 1) != b"\n":
                    os.write(descriptor, b"\n")  # end a line that a crash cut off
        except BaseException:
            os.close(descriptor)
            raise
        self._file, self._inode = descriptor, (status.st_dev, status.st_ino)

    def _troubled(self, error: OSError | ConfigError) -> str:
        reason = error.message if isinstance(error, ConfigError) else (error.strerror or type(error).__name__)
        trouble = f"the egress ledger in {self._folder} cannot be kept ({reason}), so nothing is sent"
        if trouble != self._trouble:
            logger.warning("%s", trouble)
        self._trouble = trouble
        return trouble


@contextmanager
def own_requests(state_dir: Path, reason: str, model: str = "") -> Iterator[Callable[[str], None]]:
    """Yield a function to call with a URL before anything is sent there. Its first call for a host writes the row.

    The rows end with this context. For `reason`, `model` and the function's error see `Ledger.begin_own`. It raises
    InvalidRequest for what is no URL.
    """
    ledger, rows = Ledger(state_dir), dict[str, int]()

    def begin(url: str) -> None:
        try:
            host = urlsplit(url).netloc
        except ValueError:
            raise InvalidRequest(f"{url!r:.200} is not an address such as http://127.0.0.1:8127") from None
        if host not in rows:
            rows[host] = ledger.begin_own(reason, url, model)

    outcome = "cancelled"
    try:
        yield begin
        outcome = "completed"
    except Exception as error:
        outcome = error.code if isinstance(error, EdgeAgentError) else "failed"
        raise
    finally:
        for row in rows.values():
            ledger.end(row, outcome)
        ledger.close()


def _inode(path: Path) -> tuple[int, int]:
    try:
        status = path.lstat()
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
