"""The run of one request over one or more backends, from its acceptance to its terminal event.

If a backend fails before the first content, another one is tried. If it fails later, another one continues the answer
after the delivered part. If no backend can, one error ends the answer and says how many tokens were delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from edgeagent.backends.prompts import num_prompt_tokens, prompt_bytes
from edgeagent.backends.remote.body import why_not_continuable
from edgeagent.errors import (
    BackendUnavailable,
    ContextLengthExceeded,
    DeadlineUnreachable,
    EdgeAgentError,
    InvalidRequest,
    LocalUnavailable,
    ModelLoadFailed,
    ModelLoading,
    ModelNotFound,
    NotSupported,
    Overloaded,
    RemoteUnavailable,
    RequestTimeout,
    WorkerCrashed,
)
from edgeagent.router.delivery import FOR_ROUTER, Delivery, has_content
from edgeagent.router.policy import LOCAL_LATE, Order
from edgeagent.router.route_chooser import RouteChooser
from edgeagent.types import (
    Finished,
    FinishReason,
    GenerateRequest,
    Interrupted,
    Queued,
    Sink,
    Step,
    is_remote,
    replace,
    unrun,
)

# Errors that mean that this backend lacks something that another one may have.
_MISSING_FEATURE = (ContextLengthExceeded, NotSupported)
_LOCAL_FAILURES = (BackendUnavailable, Overloaded, ModelLoading, ModelLoadFailed, WorkerCrashed, ModelNotFound)


def is_final(error: EdgeAgentError, *, is_local: bool) -> bool:
    """Whether an error ends the request without another attempt: a timeout, or an invalid request on this machine."""
    if isinstance(error, RequestTimeout):
        return True
    return is_local and isinstance(error, InvalidRequest) and not is_missing_feature(error)


def is_missing_feature(error: EdgeAgentError) -> bool:
    """Whether an error means that a backend lacks a feature or context length that another backend may have."""
    return isinstance(error, _MISSING_FEATURE)


def most_telling(errors: Sequence[EdgeAgentError]) -> EdgeAgentError:
    """Return the error that the client gets. `errors` are those of all tried backends, in the order of the attempts.

    Errors that say that a backend lacks a feature, or that a remote's context is too short, are passed over. The first
    of the other errors is returned. If there are no others, the first error is returned.
    """
    return next((error for error in errors if not _is_less_telling(error)), errors[0])


def _is_less_telling(error: EdgeAgentError) -> bool:
    is_short = isinstance(error, ContextLengthExceeded) and is_remote(error.served_by)
    return is_short or isinstance(error, NotSupported)


def only_full(full: Overloaded, errors: Sequence[EdgeAgentError]) -> Overloaded | None:
    """Return `full` with the messages of `errors` added to it, if this is the right error for the client; else None.

    `full` says that all remaining backends are full. `errors` come from the backends that were tried. `full` is the
    right error if each of `errors` means a missing feature or model, a short context, a full backend, or an unusable
    remote.
    """
    if not all(
        isinstance(error, (*_MISSING_FEATURE, ModelNotFound, RemoteUnavailable, Overloaded)) for error in errors
    ):
        return None
    whys = "; ".join(dict.fromkeys(error.message for error in errors))
    return Overloaded(f"{full.message} ({whys})", retry_after_s=full.retry_after_s)


def kept_here(error: EdgeAgentError, request: GenerateRequest, why: str) -> EdgeAgentError:
    """Return the error for the client whose request failed on this machine and may not leave it.

    The error says how much would have been sent to a remote. `why` is the reason from the machine's policy; empty if
    another setting keeps the request here. An error that is not a failure of this machine is returned unchanged, and so
    is a DeadlineUnreachable, which says when this machine can serve the request.
    """
    if not isinstance(error, _LOCAL_FAILURES) or isinstance(error, DeadlineUnreachable):
        return error
    why = why or "local_only"
    return LocalUnavailable(
        f"{error.message.rstrip('.')} ({error.code}). The request may not leave this machine ({why}); otherwise "
        f"{prompt_bytes(request)} bytes, about {num_prompt_tokens(request)} tokens, would have been sent to a remote",
        param=error.param,
        retry_after_s=error.retry_after_s,
        served_by="local",
    )


WORKER_LOST = "worker_lost"
_FAILED = "failed"
# A backend that failed is not tried again. But an answer can move from a lost worker to a remote, and then to the
# next worker. The limit is by estimate.
_MAX_ATTEMPTS = 12


class RoutedRequest(Sink):
    """Generates the answer to one request: the sink of one backend after another, which gives the client one answer.

    The router sets `is_cancelled` when the request is cancelled. Deltas pass in calls of `put`; whether the answer
    moves is decided between such calls.
    """

    def __init__(
        self,
        request: GenerateRequest,
        sink: Sink,
        locate: Callable[[GenerateRequest], Awaitable[GenerateRequest]],
        chooser: RouteChooser,
        live: dict[str, RoutedRequest],
        clock: Callable[[], float],
    ) -> None:
        """`locate` returns the request with its model's canonical name. While it runs, the request is in `live`."""
        self._request = request
        self._sink = sink
        self._locate = locate
        self._chooser = chooser
        self._live = live
        self._clock = clock
        self._delivery = Delivery(request, clock)
        self._accepted_s = clock()
        self._left_out: dict[str, str] = {}  # the backends that are not tried again, and why
        self._errors: list[EdgeAgentError] = []
        self._broken: EdgeAgentError | None = None  # the failure that interrupted the client's answer
        self._num_before = 0  # tokens that the client had when this attempt began
        self._began_s = clock()  # when this attempt began
        self._held: list[Step] | None = None  # this attempt's steps before its first content, if it may still fail
        self._patience: asyncio.TimerHandle | None = None
        self._decision: asyncio.Handle | None = None  # whether the answer moves after its worker was lost
        self._is_flowing = False  # content comes, and nothing is to be decided
        self._is_late = False  # the patience with this attempt is over, and no other backend could take over
        self._leaving = asyncio.timeout(None)  # cancels this attempt when its time has come
        self._why_leaving = ""
        self._elsewhere: Order | None = None
        self._was_late = False  # a late backend is tried again, since no other is left
        self._has_moved = False  # an earlier attempt has ended
        self._is_placed = False
        self._is_over = False
        self.is_cancelled = False

    async def run(self) -> None:
        """Run the request to its end; the last step has the terminal event. Raise the EdgeAgentError that ends it."""
        self._live[self._request.id] = self
        try:
            await self._begin()
            if self.is_cancelled:
                self._sink.put(Step((unrun(FinishReason.CANCELLED, "cancelled"),), at_s=self._clock()))
                return
            order = self._choose()
            for _ in range(_MAX_ATTEMPTS):
                self._delivery.begin(order.routes[0])
                self._num_before, self._began_s = self._delivery.num_tokens, self._clock()
                try:
                    cause = await self._attempt(order)
                except EdgeAgentError as error:
                    cause = self._record_failure(error)
                if self._is_over or not cause:
                    return
                # It may have been unloaded while the request ran elsewhere. If it is gone, the next attempt says so.
                with suppress(EdgeAgentError, OSError):
                    await self._locate(self._request)
                if self.is_cancelled:
                    self._sink.put(self._delivery.cancelled())
                    return
                if self._delivery.has_reached_limit:
                    self._sink.put(self._delivery.cut_at_limit())
                    return
                self._has_moved = True
                order, self._elsewhere = self._elsewhere or self._choose(), None
                self._delivery.move(order.routes[0].backend, cause)
            raise self._failure()
        finally:
            self._live.pop(self._request.id, None)

    async def _begin(self) -> None:
        located = await self._locate(self._request)
        request = self._request = replace(located, target=self._chooser.target(located))
        self._delivery = Delivery(request, self._clock, self._chooser.overruled(request))

    async def _attempt(self, order: Order) -> str:
        """Run the request at an order's first backend. Return why another backend must continue; "" if none must.

        While another backend could be tried instead, the steps before the first content are held back. So the client
        learns only which backend answers, and not which ones failed before. If the client wants progress reports,
        nothing is held back.
        """
        request, route = self._timed(), order.routes[0]
        is_held = len(order.routes) > 1 and not request.reports_progress and not self._delivery.has_content
        self._held = [] if is_held else None
        self._why_leaving, self._is_flowing, self._leaving = "", False, asyncio.timeout(None)
        backend = self._chooser.backends.get(route.backend)
        if backend is None:
            raise RemoteUnavailable(f"{route.backend} was removed", served_by=route.backend)
        self._begin_patience(order)
        try:
            async with self._leaving:
                await backend.generate(request, self, route.permit, self._delivery.so_far)
        except TimeoutError:
            if not self._why_leaving:
                raise
        finally:
            self._end_patience()
            if self._decision is not None:
                self._decision.cancel()
                self._decision = None
        return self._why_leaving

    def put(self, step: Step) -> None:
        """Pass a step of the current backend on to the client, in the form that hides its failures."""
        if self._is_flowing and FOR_ROUTER.isdisjoint(map(type, step.deltas)):
            self._delivery.note(step)
            self._sink.put(step)
            return
        self._is_flowing = False
        if self._why_leaving:
            return
        if step.deltas and isinstance(step.deltas[0], Queued):
            self._tell_wait(step)
            return
        if self._patience is not None and has_content(step):
            self._end_patience()
        for_client = self._delivery.take(step)
        if step.deltas and type(step.deltas[-1]) is Interrupted:
            # The worker was lost. Its supervisor's state is read once the supervisor has settled all requests.
            self._decision = asyncio.get_running_loop().call_soon(self._after_loss)
        elif self._is_late:
            self._on_late()
        if for_client is None:
            return
        self._is_over = bool(for_client.deltas) and type(for_client.deltas[-1]) is Finished
        if not self._is_placed and self._delivery.has_content:
            self._place()
        if self._held is not None:
            self._held.append(for_client)
            if not (self._delivery.has_content or self._is_over):
                return
        held, self._held = self._held or [for_client], None
        is_decided = self._patience is None and self._decision is None
        self._is_flowing = self._is_placed and is_decided
        for each in held:
            self._sink.put(each)

    async def room(self) -> None:
        await self._sink.room()

    def _tell_wait(self, step: Step) -> None:
        """Pass on at once that the request waits, although another backend may still answer it."""
        if not (self._has_moved or self._delivery.has_content):
            self._sink.put(step)

    def _place(self) -> None:
        """Record where the first content came from."""
        assert self._delivery.route is not None
        self._is_placed = True
        took_s = self._clock() - self._began_s
        self._chooser.note(self._request, self._delivery.route, self._delivery.placement.reason, took_s)

    def _begin_patience(self, order: Order) -> None:
        """Wait for the backend's first content at most as long as the order says, if another backend may take over."""
        self._end_patience()
        if order.patience_s is not None and self._may_move:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(order.patience_s, self._on_late)

    def _end_patience(self) -> None:
        self._is_late = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _on_late(self) -> None:
        """Leave the backend, which gave no content in time, if another one can take over now."""
        route = self._delivery.route
        assert route is not None
        left_out = {**self._left_out, route.backend: LOCAL_LATE}
        if not self.is_cancelled and self._chooser.can_take_over(self._request, left_out):
            self._left_out = left_out
            self._leave(LOCAL_LATE)
        self._is_late = True

    def _leave(self, why: str) -> None:
        """End this attempt, so that another backend continues the answer."""
        self._why_leaving, self._is_flowing = why, False
        self._leaving.reschedule(0)

    def _timed(self) -> GenerateRequest:
        """Return the request for the next attempt. After the first attempt, its limits are the time that remains.

        Raise RequestTimeout if no time remains. The first token of an answer that has content is no longer limited.
        """
        request = self._request
        if not self._has_moved:
            return request
        need, now_s = request.need, self._clock()
        if need.first_token_s is not None:
            left_s = None if self._delivery.has_content else max(0.0, self._accepted_s + need.first_token_s - now_s)
            request = replace(request, need=replace(need, first_token_s=left_s))
        if request.timeout_s is None:
            return request
        if (left_s := self._accepted_s + request.timeout_s - now_s) <= 0:
            raise RequestTimeout.passed(request.timeout_s)
        return replace(request, timeout_s=left_s)

    def _choose(self) -> Order:
        """Return the order of the backends that are left; raise the error for the client if none is left.

        A backend that was only late is tried again if no other backend is left, and then may take its time.
        """
        try:
            return self._chooser.choose(self._request, self._left_out)
        except EdgeAgentError as error:
            late = [name for name, why in self._left_out.items() if why == LOCAL_LATE]
            if late:
                for name in late:
                    del self._left_out[name]
                self._was_late = True
                return self._choose()
            has_failed_here = not all(map(is_remote, self._left_out))
            if not self._errors:
                self._errors.append(error.without_traceback())
            elif isinstance(error, Overloaded) and not has_failed_here and (full := only_full(error, self._errors)):
                self._errors = [full]
            raise self._failure() from None

    @property
    def _may_move(self) -> bool:
        """Whether another backend may continue the answer from here, if one can."""
        if self.is_cancelled or self._was_late or (self._delivery.has_content and self._delivery.why_not_movable):
            return False
        so_far = self._delivery.so_far
        return so_far is None or not why_not_continuable(self._request, so_far)

    def _after_loss(self) -> None:
        """Continue a dead worker's answer elsewhere, if another backend is sooner than the next worker."""
        self._decision = None
        route = self._delivery.route
        assert route is not None
        elsewhere = Order(())
        if self._may_move:
            elsewhere = self._chooser.after_loss(self._request, route, self._left_out)
        if elsewhere.routes:
            self._elsewhere = elsewhere
            self._leave(WORKER_LOST)
        else:
            self._begin_patience(elsewhere)

    def _record_failure(self, error: EdgeAgentError) -> str:
        """Record the current backend's failure and return the error's code.

        Raise the error for the client if no other backend may continue.
        """
        route = self._delivery.route
        assert route is not None
        self._errors.append(error.without_traceback())
        self._left_out[route.backend] = _FAILED
        if self._delivery.has_content and (self._broken is None or self._delivery.num_tokens > self._num_before):
            self._broken = error
        if isinstance(error, InvalidRequest) and not route.is_local and not is_missing_feature(error):
            # Other remotes would refuse the request too, but this machine may accept it.
            self._left_out |= {name: _FAILED for name in self._chooser.backends if is_remote(name)}
        is_unmovable = self._delivery.has_content and bool(self._delivery.why_not_movable)
        if is_unmovable or is_final(error, is_local=route.is_local) or self._chooser.is_stopping:
            raise self._failure() from None
        return error.code

    def _failure(self) -> EdgeAgentError:
        """Return the one error that ends the request.

        If the request timed out, this is the timeout. Otherwise, if a failure interrupted an answer with content, it is
        this failure. Otherwise it is the error that `most_telling` chooses. If the request may not leave this machine,
        `kept_here` adds an explanation to it.
        """
        last = self._errors[-1]
        if isinstance(last, RequestTimeout):
            last.num_delivered_tokens = self._delivery.num_tokens
            return last
        if self._broken is not None:
            self._broken.num_delivered_tokens = self._delivery.num_tokens
            return self._broken
        error = most_telling(self._errors)
        if not self._chooser.is_kept_here(self._request):
            return error
        return kept_here(error, self._request, self._chooser.why_local())
