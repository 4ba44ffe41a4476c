"""The errors with which a model's supervisor refuses or ends requests."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from edgeagent.errors import (
    BackendUnavailable,
    EdgeAgentError,
    InvalidRequest,
    ModelChanged,
    ModelDamaged,
    PayloadTooLarge,
    WorkerCrashed,
)
from edgeagent.worker.exit_cause import one_line
from edgeagent.worker.protocol import LENGTH_BYTES, MAX_FRAME_TO_WORKER_BYTES, Ask, Submit, encode


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error for new requests until `until_s` (by the supervisor's clock). Until then no worker is started."""

    error: EdgeAgentError
    until_s: float

    def left_s(self, now_s: float) -> float:
        return max(0.0, self.until_s - now_s)

    def check(self, now_s: float) -> None:
        """Before `until_s`, raise the error, with the seconds that are left as its `retry_after_s` (at least 1)."""
        if now_s < self.until_s:
            raise renewed(self.error, self.until_s - now_s)


def sendable_frame(message: Submit | Ask) -> bytes:
    """Return a message's frame. Raise InvalidRequest if there is none, and PayloadTooLarge if it is too large."""
    try:
        frame = encode(message)
    except (UnicodeEncodeError, OverflowError, msgspec.MsgspecError, TypeError) as error:
        raise InvalidRequest(f"the request cannot be sent to the model's process: {error}") from error
    num_bytes = len(frame) - LENGTH_BYTES
    if num_bytes > MAX_FRAME_TO_WORKER_BYTES:
        raise PayloadTooLarge(f"the request has {num_bytes} bytes; at most {MAX_FRAME_TO_WORKER_BYTES} are accepted")
    return frame


def quarantined(name: str, cause: str, duration_s: float) -> EdgeAgentError:
    """Return the error for a model whose workers crashed too often."""
    return BackendUnavailable(
        f"the process of model {name!r} crashed too often ({cause}); it is not started for {duration_s / 60:g} "
        "minutes, or until `edgeagent reload`",
        served_by="local",
    )


def failed_part(part: str, cause: str) -> EdgeAgentError:
    """Return the error for a file that ended the process when `part` of it was tried (see `LoadProgress.part`)."""
    return ModelDamaged(
        f"the model cannot be served: {one_line(part)} ended the process ({cause}). The file is damaged, was "
        "converted wrongly or needs another build of llama.cpp; download it again, or use another one",
        served_by="local",
    )


def changed(name: str) -> EdgeAgentError:
    """Return the error for a stream that cannot continue because the model's file was replaced."""
    return ModelChanged(
        f"the file of model {name!r} was changed, and the process that ran it ended; its answers cannot be continued. "
        "Send the request again",
        retry_after_s=1.0,
        served_by="local",
    )


def stopping() -> BackendUnavailable:
    return BackendUnavailable("the daemon is stopping; send the request again later", served_by="local")


def ended(cause: str) -> WorkerCrashed:
    return WorkerCrashed(f"the model's process ended ({cause}); try again", retry_after_s=1.0, served_by="local")


def stuck(cause: str) -> WorkerCrashed:
    """Return the error for a request that hung its worker."""
    return WorkerCrashed(
        f"the model's process was ended because of this request ({cause}), which is not tried again. Send a shorter "
        "prompt, or a simpler schema",
        served_by="local",
    )


def crashed_again(cause: str) -> WorkerCrashed:
    """Return the error for a request during which several workers died."""
    return WorkerCrashed(
        f"the model's process ended during the request ({cause}), and so did the new ones that tried it again; "
        "try again later, or change the request",
        retry_after_s=1.0,
        served_by="local",
    )


def renewed(error: EdgeAgentError, retry_after_s: float) -> EdgeAgentError:
    """Return a new error like this one. Raising the same exception object repeatedly would collect tracebacks."""
    return type(error)(error.message, param=error.param, retry_after_s=max(1.0, retry_after_s), served_by="local")
