"""llama-index: completion, chat, streams, tools and classes through its class for OpenAI-like servers."""

from __future__ import annotations

from cases import ASK_TIMER, BASE_URL, KEY, MODEL, case, main
from llama_index.core.llms import ChatMessage
from llama_index.core.program import FunctionCallingProgram
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

llm = OpenAILike(
    model=MODEL,
    api_base=BASE_URL,
    api_key=KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    context_window=2048,
    max_tokens=64,
    max_retries=0,
)
HELLO = [ChatMessage(role="user", content="Hello!")]


class Timer(BaseModel):
    """A timer that is asked for."""

    minutes: int


def set_timer(minutes: int) -> str:
    """Set a timer."""
    return f"{minutes} minutes"


@case("completion")
async def _() -> None:
    assert (await llm.acomplete("Hello!")).text


@case("chat")
async def _() -> None:
    assert (await llm.achat(HELLO)).message.content


@case("chat, streamed")
async def _() -> None:
    text = ""
    async for part in await llm.astream_chat(HELLO):
        text += part.delta or ""
    assert text


@case("tool call")
async def _() -> None:
    tool = FunctionTool.from_defaults(fn=set_timer)
    answer = await llm.achat_with_tools([tool], user_msg=ASK_TIMER, tool_required=True)
    (call,) = llm.get_tool_calls_from_response(answer)
    assert call.tool_name == "set_timer" and isinstance(call.tool_kwargs["minutes"], int)


@case("tool call, streamed")
async def _() -> None:
    tool = FunctionTool.from_defaults(fn=set_timer)
    last = None
    async for part in await llm.astream_chat_with_tools([tool], user_msg=ASK_TIMER, tool_required=True):
        last = part
    assert last is not None
    (call,) = llm.get_tool_calls_from_response(last)
    assert call.tool_name == "set_timer"


@case("class, through JSON schema")
async def _() -> None:
    timer = await llm.astructured_predict(Timer, PromptTemplate(ASK_TIMER))
    assert isinstance(timer, Timer)


@case("class, through a tool")
async def _() -> None:
    program = FunctionCallingProgram.from_defaults(output_cls=Timer, prompt_template_str=ASK_TIMER, llm=llm)
    assert isinstance(await program.acall(), Timer)


main()
