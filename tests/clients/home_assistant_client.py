"""Home Assistant: a conversation of two turns with its OpenAI integration, as its Assist pipeline would have it."""

from __future__ import annotations

import os
import tempfile

from cases import BASE_URL, KEY, MODEL, case, main

os.environ["OPENAI_BASE_URL"] = BASE_URL  # the integration has no such setting; its library reads this

from homeassistant.components import conversation, openai_conversation
from homeassistant.config_entries import ConfigEntries, ConfigEntry
from homeassistant.core import Context, HomeAssistant
from homeassistant.helpers import area_registry, device_registry, entity_registry


@case("a conversation of two turns")
async def _() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = HomeAssistant(folder)
        home.config_entries = ConfigEntries(home, {})
        for registry in (area_registry, device_registry, entity_registry):  # the prompt lists areas and devices
            await registry.async_load(home)
        entry = ConfigEntry(
            version=1,
            minor_version=1,
            domain="openai_conversation",
            title="edgeagent",
            data={"api_key": KEY},
            source="user",
            options={"chat_model": MODEL},
        )
        try:
            assert await openai_conversation.async_setup_entry(home, entry)
            first = await conversation.async_converse(home, "Hello!", None, Context(), "en", entry.entry_id)
            second = await conversation.async_converse(
                home, "What can you do?", first.conversation_id, Context(), "en", entry.entry_id
            )
        finally:
            await home.async_stop(force=True)
    for result in (first, second):
        assert result.response.error_code is None, result.response.as_dict()
        assert result.response.speech["plain"]["speech"]
    assert second.conversation_id == first.conversation_id


main()
