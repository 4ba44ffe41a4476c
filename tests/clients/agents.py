"""Agent frameworks of Python: smolagents, Haystack, AutoGen, PydanticAI, and the command llm.

They have an environment of their own, since they pin each other's libraries.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.ollama import OllamaChatCompletionClient
from autogen_ext.models.openai import OpenAIChatCompletionClient
from cases import ASK_TIMER, BASE_URL, KEY, MODEL, URL, case, main
from haystack.components.agents import Agent as HaystackAgent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool as haystack_tool
from haystack.utils import Secret
from haystack_integrations.components.generators.ollama import OllamaChatGenerator
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

MODEL_INFO = ModelInfo(vision=False, function_calling=True, json_output=True, structured_output=True, family="unknown")


def set_timer(minutes: int) -> str:
    """Set a timer.

    Args:
        minutes: how many minutes the timer runs
    """
    assert isinstance(minutes, int)
    return "The timer is set."


@case("smolagents, an agent of at most two steps")
async def _() -> None:
    model = OpenAIServerModel(MODEL, api_base=BASE_URL, api_key=KEY, max_tokens=96)
    # The instructions of its agents do not fit the bundled model.
    agent = ToolCallingAgent([tool(set_timer)], model, max_steps=2)
    agent.prompt_templates["system_prompt"] = "Call the tools."
    await asyncio.to_thread(agent.run, ASK_TIMER)
    assert any(getattr(step, "tool_calls", None) for step in agent.memory.steps)


@case("Haystack, an agent through OpenAI's API")
async def _() -> None:
    generator = OpenAIChatGenerator(Secret.from_token(KEY), MODEL, api_base_url=BASE_URL)
    check_haystack(await asyncio.to_thread(run_haystack, generator))


@case("Haystack, an agent through Ollama's API")
async def _() -> None:
    check_haystack(await asyncio.to_thread(run_haystack, OllamaChatGenerator(MODEL, url=URL)))


def run_haystack(generator: object) -> list[ChatMessage]:
    """Return the messages of an agent's run."""
    agent = HaystackAgent(chat_generator=generator, tools=[haystack_tool(set_timer)], max_agent_steps=3)
    messages: list[ChatMessage] = agent.run(messages=[ChatMessage.from_user(ASK_TIMER)])["messages"]
    return messages


def check_haystack(messages: list[ChatMessage]) -> None:
    """Check that a call was made and answered."""
    assert any(message.tool_calls for message in messages) and messages[-1].text, messages


@case("AutoGen, an agent through OpenAI's API")
async def _() -> None:
    client = OpenAIChatCompletionClient(model=MODEL, base_url=BASE_URL, api_key=KEY, model_info=MODEL_INFO)
    await check_autogen(client)


@case("AutoGen, an agent through Ollama's API")
async def _() -> None:
    await check_autogen(OllamaChatCompletionClient(model=MODEL, host=URL, model_info=MODEL_INFO))


async def check_autogen(client: OpenAIChatCompletionClient | OllamaChatCompletionClient) -> None:
    """Check that an agent calls the tool, and sums up."""
    agent = AssistantAgent("helper", client, tools=[set_timer], reflect_on_tool_use=True)
    result = await agent.run(task=ASK_TIMER)
    await client.close()
    assert "ToolCallExecutionEvent" in [type(message).__name__ for message in result.messages], result.messages


@case("PydanticAI, an agent through chat completions and through responses")
async def _() -> None:
    provider = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
    for model in (OpenAIChatModel(MODEL, provider=provider), OpenAIResponsesModel(MODEL, provider=provider)):
        agent = PydanticAgent(model, tools=[set_timer])
        result = await agent.run(ASK_TIMER)
        assert result.output and any(
            part.part_kind == "tool-return" for message in result.all_messages() for part in message.parts
        )
        async with agent.run_stream(ASK_TIMER) as streamed:
            assert await streamed.get_output()


@case("llm, with a model of extra-openai-models.yaml, and a conversation that goes on")
async def _() -> None:
    with tempfile.TemporaryDirectory(prefix="llm-") as folder:
        entry = f'- model_id: local\n  model_name: {MODEL}\n  api_base: "{BASE_URL}"\n  supports_tools: true\n'
        (Path(folder) / "extra-openai-models.yaml").write_text(entry, encoding="utf-8")
        for arguments in (("-m", "local", "Hello!"), ("-c", "What is your name?")):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "llm", *arguments),
                env={**os.environ, "LLM_USER_PATH": folder},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
            printed, _ = await process.communicate()
            assert process.returncode == 0 and printed.strip(), printed


main()
