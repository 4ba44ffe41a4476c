"""The daemon's end of the pipes to a child process.

A Channel spawns a child, sends and receives messages, and ends the child. It gives each message to `on_message`, in the
event loop's read callback, without a task or a queue. The supervisor interprets the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import psutil

from edgeagent.worker.exit_cause import describe_exit, is_out_of_memory, num_oom_kills
from edgeagent.worker.parent.environment import worker_environment
from edgeagent.worker.parent.supervision.watchdog import Signs
from edgeagent.worker.protocol import (
    LENGTH_BYTES,
    ProtocolError,
    RenderJob,
    Stop,
    ToWorker,
    encode,
    frame_length,
)

STDERR_TAIL_BYTES = 16 << 10
OUTPUT_GRACE_S = 0.5
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class FrameBuffer:
    """Splits a stream of bytes into frame bodies."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Take more bytes and yield the bodies they complete; raise ProtocolError for a frame over the limit."""
        buffer = self._buffer
        buffer += chunk
        start = 0
        try:
            while len(buffer) - start >= LENGTH_BYTES:
                body = start + LENGTH_BYTES
                end = body + frame_length(bytes(buffer[start:body]), self._max_bytes)
                if end > len(buffer):
                    break
                start = end
                yield bytes(buffer[body:end])
        finally:
            del buffer[:start]


@dataclass(frozen=True, slots=True)
class FloodLimit:
    """How much a child may send in a period. More is a violation of the protocol; even a fast model sends less.

    The bytes of jobs for the renderer do not count, because each may be as large as a conversation. A child may have
    few of them at a time.
    """

    max_frames: int = 20_000
    # Many fast streams with twenty log probabilities per token produce several MiB per second.
    max_bytes: int = 64 << 20
    period_s: float = 1.0


class Channel(asyncio.SubprocessProtocol):
    """One child process from spawn to end. `ended` is done when it has ended and all its messages were delivered.

    `on_message` gets each message, and may raise ProtocolError. `on_violation` gets a description of the first
    violation of the protocol. No messages are delivered after that. `returncode` is None until the child has ended.
    `flood` is None if the receiver itself limits what the child sends. `decode` makes a message of a frame's body, and
    `max_bytes` limits the body.
    """

    def __init__(
        self,
        on_message: Callable[[Any], None],
        on_violation: Callable[[str], None],
        flood: FloodLimit | None,
        decode: Callable[[bytes], Any],
        max_bytes: int,
    ) -> None:
        # Kept, because each call of asyncio.get_running_loop is a system call before Python 3.12.
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.returncode: int | None = None
        self.pid: int | None = None
        self._on_message: Callable[[Any], None] | None = on_message
        self._decode = decode
        self._on_violation = on_violation
        self._flood = flood
        self._period_began_s = 0.0
        self._num_frames = 0
        self._num_bytes = 0
        self._frames = FrameBuffer(max_bytes)
        self._stderr = bytearray()
        self._open_outputs = {_STDOUT, _STDERR}
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._process: psutil.Process | None = None
        self._num_oom_kills = num_oom_kills()

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        on_message: Callable[[Any], None],
        on_violation: Callable[[str], None],
        flood: FloodLimit | None,
        decode: Callable[[bytes], Any],
        max_bytes: int,
    ) -> Self:
        """Start a child in its own session, so that Ctrl-C in a terminal reaches only the daemon.

        Raise OSError if it cannot be started.
        """
        channel = cls(on_message, on_violation, flood, decode, max_bytes)
        creation_flags = 0
        if sys.platform == "win32":
            creation_flags = subprocess.CREATE_NEW_PROCESS_GROUP
        await asyncio.get_running_loop().subprocess_exec(
            lambda: channel,
            *command,
            env=worker_environment(os.environ),
            start_new_session=os.name == "posix",
            creationflags=creation_flags,
        )
        return channel

    def send(self, message: ToWorker) -> None:
        """Send a message. It is lost if the child has ended (see `ended`)."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded message. It is lost if the child has ended."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(frame)

    def signs(self) -> Signs | None:
        """Return the child's resource use so far; None if it cannot be read, as without a free descriptor."""
        if self._process is None:
            return None
        try:
            with self._process.oneshot():
                times = self._process.cpu_times()
                return Signs(times.user + times.system, self._process.memory_info().rss)
        except (psutil.Error, OSError):
            return None

    def mute(self) -> None:
        """Deliver no more messages from the child."""
        self._on_message = None

    def describe_end(self, *, has_seen_prompts: bool) -> str:
        """Return what ended the child; see `describe_exit`. The child must have ended."""
        assert self.returncode is not None
        num_more = num_oom_kills() - self._num_oom_kills
        return describe_exit(
            self.returncode, self.stderr_tail(), has_seen_prompts=has_seen_prompts, num_oom_kills=num_more
        )

    @property
    def was_short_of_memory(self) -> bool:
        """Whether the child ended because memory ran out. The child must have ended."""
        assert self.returncode is not None
        num_more = num_oom_kills() - self._num_oom_kills
        return is_out_of_memory(self.returncode, num_more, self.stderr_tail())

    def stderr_tail(self) -> str:
        """Return the end of the child's stderr, at most STDERR_TAIL_BYTES."""
        return self._stderr.decode("utf-8", "replace")

    async def stop(self, grace_s: float, save_s: float = 0.0) -> bool:
        """Ask the child to stop. After `grace_s` + `save_s` seconds, end it; return False if it cannot be ended.

        Keep the child's stdin open: a child whose stdin closes exits at once, without sending its last frames.
        """
        self.send(Stop())
        return await self._has_ended(grace_s + save_s) or await self.end(grace_s)

    async def end(self, grace_s: float) -> bool:
        """Send SIGTERM. If the child has not ended after `grace_s` seconds, send SIGKILL and wait as long again.

        Return False if the child has still not ended, for example because a driver hangs.
        """
        assert self._transport is not None
        for send_signal in (self._transport.terminate, self._transport.kill):
            with contextlib.suppress(ProcessLookupError):
                send_signal()
            if await self._has_ended(grace_s):
                return True
        self._transport.close()
        return False

    async def _has_ended(self, timeout_s: float) -> bool:
        await asyncio.wait({self.ended}, timeout=timeout_s)
        return self.ended.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast without a check: uvloop's transports have the methods but are not instances of asyncio's classes.
        process = cast(asyncio.SubprocessTransport, transport)
        self._transport = process
        self.pid = process.get_pid()
        with contextlib.suppress(psutil.Error, OSError):
            self._process = psutil.Process(self.pid)
        self._stdin = cast(asyncio.WriteTransport, process.get_pipe_transport(_STDIN))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self._stderr += data
            del self._stderr[:-STDERR_TAIL_BYTES]
        elif self._on_message is not None:
            try:
                self._receive(data)
            except ProtocolError as error:
                self.mute()
                self._on_violation(str(error))

    def _receive(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            if self._on_message is None:
                return
            message = self._decode(body)
            self._count(len(body), message)
            self._on_message(message)

    def _count(self, num_bytes: int, message: object) -> None:
        if self._flood is None:
            return
        now_s = self._loop.time()
        if now_s - self._period_began_s >= self._flood.period_s:
            self._period_began_s, self._num_frames, self._num_bytes = now_s, 0, 0
        self._num_frames += 1
        self._num_bytes += 0 if isinstance(message, RenderJob) else num_bytes
        if self._num_frames > self._flood.max_frames or self._num_bytes > self._flood.max_bytes:
            raise ProtocolError(f"a flood of {self._num_frames} frames, {self._num_bytes} bytes at once")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        self._open_outputs.discard(fd)
        if fd == _STDOUT and self.returncode is None and self._on_message is not None:
            # Usually the process is about to exit. If not, it is useless without its output.
            self._loop.call_later(OUTPUT_GRACE_S, self._closed_its_output)
        self._end_if_over()

    def _closed_its_output(self) -> None:
        if self.returncode is None and self._on_message is not None:
            self.mute()
            self._on_violation("it closed its output")

    def process_exited(self) -> None:
        assert self._transport is not None
        self.returncode = self._transport.get_returncode()
        # A grandchild may hold the pipes open; do not wait for it.
        self._loop.call_later(OUTPUT_GRACE_S, self._give_up_outputs)
        self._end_if_over()

    def _give_up_outputs(self) -> None:
        self._open_outputs.clear()
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.returncode is None or self._open_outputs or self.ended.done():
            return
        assert self._transport is not None
        self._transport.close()
        self.ended.set_result(None)
