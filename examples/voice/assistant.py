"""The turns of a conversation: words go to the daemon while they are spoken, and speech interrupts an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from edgeagent.client import Conversation, Reply, Sentences
from edgeagent.errors import EdgeAgentError
from examples.voice.audio import Loudspeaker
from examples.voice.speech import Heard, Recogniser, Voice


class Assistant:
    """Listens and answers. `note` is told each stage when it is reached."""

    def __init__(
        self, conversation: Conversation, voice: Voice, loudspeaker: Loudspeaker, note: Callable[[str], None]
    ) -> None:
        self._conversation = conversation
        self._voice = voice
        self._loudspeaker = loudspeaker
        self._note = note
        self._is_user_speaking = False
        self._gap = ""
        self._reply: Reply | None = None
        self._answering: asyncio.Task[None] | None = None

    @property
    def is_answering(self) -> bool:
        """Whether an answer is generated or heard."""
        return self._loudspeaker.is_playing or (self._answering is not None and not self._answering.done())

    def is_idle(self) -> bool:
        """Whether both sides are silent."""
        return not self._is_user_speaking and not self.is_answering

    async def listen(self, frames: AsyncIterator[bytes], recogniser: Recogniser) -> None:
        """Converse until the microphone's frames end."""
        await self._conversation.prefill()
        async for frame in frames:
            for heard in recogniser.hear(frame):
                await self._follow(heard)

    async def _follow(self, heard: Heard) -> None:
        conversation = self._conversation
        match heard:
            case "began", _:
                self._is_user_speaking = True
                await self._interrupt()
            case "partial", words:
                await conversation.replace_tail(self._gap + words)
            case "final", words:
                await conversation.append(self._gap + words if words else "")
                await conversation.ahead()
                # The user may only have paused.
                self._gap = " " if conversation.words else ""
            case "end", _:
                self._is_user_speaking, self._gap = False, ""
                if conversation.words:
                    self._note("end of speech")
                    print("you:", conversation.words)
                    self._reply = await conversation.commit()
                    self._answering = asyncio.create_task(self._answer(self._reply))

    async def _interrupt(self) -> None:
        """Be silent, and stop the answer."""
        if self.is_answering:
            self._note("barge-in")
            self._reply = None
            self._loudspeaker.stop()
            await self._conversation.cancel()

    async def _answer(self, reply: Reply) -> None:
        sentences = Sentences()
        try:
            async for text in reply.texts():
                self._note("first token")
                for sentence in sentences.add(text):
                    self._speak(reply, sentence)
            for sentence in sentences.end():
                self._speak(reply, sentence)
        except EdgeAgentError as error:
            print("edgeagent:", error)
            self._speak(reply, "Sorry, I cannot answer now.")

    def _speak(self, reply: Reply, sentence: str) -> None:
        if reply is self._reply:  # it was not interrupted
            self._note("first sentence")
            self._loudspeaker.play(self._voice.speak(sentence))
            print("assistant:", sentence)
