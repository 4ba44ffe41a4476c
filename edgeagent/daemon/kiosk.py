"""What can be wrong with a kiosk's settings, told to the owner at the start: otherwise only visitors would see it."""

from __future__ import annotations

import asyncio
import logging

from edgeagent.backends.base import Models
from edgeagent.config import KioskConfig
from edgeagent.daemon.state import StartError
from edgeagent.errors import ConfigError, ContextLengthExceeded, EdgeAgentError
from edgeagent.kiosk_prompt import read_facts, system_prompt
from edgeagent.service.service import info_of
from edgeagent.types import ChatPrompt, Message, RenderPrompt

_CHECK_S = 1.0

logger = logging.getLogger(__name__)


def check_facts(kiosk: KioskConfig) -> None:
    """Raise StartError if kiosk.facts_file cannot be used.

    Its exit status is FAILED: a service is started again, and until then a program may have written the file.
    """
    try:
        read_facts(kiosk.facts_file)
    except ConfigError as error:
        raise StartError(error.message) from None


async def warn_of_kiosk(models: Models, kiosk: KioskConfig) -> None:
    """Warn if there is no such model as the kiosk's."""
    if not kiosk.model:
        return
    try:
        await models.locate(kiosk.model)
    except EdgeAgentError as error:
        logger.warning("the kiosk's visitors get no answers: kiosk.model: %s", error.message)


async def check_prompt(models: Models, kiosk: KioskConfig) -> None:
    """As soon as the kiosk's model is loaded, log an error if the system prompt does not fit its context.

    What else can go wrong is told elsewhere.
    """
    try:
        name = await models.locate(kiosk.model)
        while (info := info_of(models, name)) is None:  # noqa: ASYNC110 - it is the state of another part
            await asyncio.sleep(_CHECK_S)
        text = system_prompt(kiosk, await asyncio.to_thread(read_facts, kiosk.facts_file))
        # Many templates require a user's message.
        asked = ChatPrompt((Message("system", text), Message("user", "Hello")))
        num_tokens = len((await models.ask(name, RenderPrompt(asked))).tokens)
        if num_tokens < info.context_length:
            return
        problem = f"with a question they have {num_tokens} tokens, but the context holds {info.context_length}"
    except ContextLengthExceeded as error:
        problem = error.message
    except EdgeAgentError:
        return
    logger.error("the kiosk's visitors get no answers: its instructions and kiosk.facts_file do not fit: %s", problem)
