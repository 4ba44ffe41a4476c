"""Write what Python clients send for ten ordinary types: one file for each client, beside this script.

Run it in an environment that has the clients; README.md names their versions. It needs no server: it intercepts the
requests before they are sent.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import httpx
import httpx2
import instructor
import ollama
from langchain_openai import ChatOpenAI
from llama_index.core.program.function_program import get_function_tool
from openai import OpenAI
from pydantic import BaseModel, Field, SecretStr

Fragment = dict[str, Any]


class Flat(BaseModel):
    name: str
    age: int
    height: float
    member: bool


class Address(BaseModel):
    street: str
    city: str


class Nested(BaseModel):
    name: str
    home: Address
    work: Address = Field(description="Where they work")


class Optional(BaseModel):
    title: str
    subtitle: str | None = None
    pages: int | None = None
    publisher: Address | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: int


class Union(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    number: int | str


class Colour(Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Enumeration(BaseModel):
    colour: Colour
    size: Literal["small", "large"]
    stars: Literal[1, 2, 3]


class Item(BaseModel):
    name: str
    quantity: int


class List(BaseModel):
    items: list[Item]
    tags: list[str]


class Dict(BaseModel):
    prices: dict[str, float]
    stock: dict[str, int]


class Date(BaseModel):
    title: str
    day: date
    created: datetime


class Recursive(BaseModel):
    value: int
    children: list[Recursive] = []


class Bounded(BaseModel):
    name: str = Field(min_length=1, max_length=20)
    age: int = Field(ge=0, le=150)
    ratio: float = Field(gt=0, lt=1)
    code: str = Field(pattern=r"^[A-Z]{3}-[0-9]{4}$")
    scores: list[float] = Field(min_length=1, max_length=3)


TYPES: dict[str, type[BaseModel]] = {
    "flat": Flat,
    "nested": Nested,
    "optional": Optional,
    "union": Union,
    "enum": Enumeration,
    "list": List,
    "dict": Dict,
    "date": Date,
    "recursive": Recursive,
    "bounded": Bounded,
}
MESSAGES: Any = [{"role": "user", "content": "Give me an example."}]
KEPT = ("response_format", "tools", "tool_choice", "format")


class Catcher:
    """Stores the body of the last request, and answers each request with an error."""

    def __init__(self) -> None:
        self.body: Fragment = {}
        self.transport = httpx.MockTransport(lambda request: httpx.Response(400, json=self._note(request.content)))
        # The openai package, and so LangChain, has an HTTP library of its own.
        self.http = httpx2.Client(
            transport=httpx2.MockTransport(lambda request: httpx2.Response(400, json=self._note(request.content)))
        )
        self.openai = OpenAI(api_key="unused", http_client=self.http, max_retries=0, base_url="http://x/v1")

    def _note(self, content: bytes) -> Fragment:
        self.body = json.loads(content)
        return {"error": {"message": "caught"}}

    def catch(self, send: Callable[[], object]) -> Fragment:
        """Return the part of the sent request that specifies the answer's form."""
        self.body = {}
        with contextlib.suppress(Exception):
            send()
        assert self.body, "nothing was sent"
        return {key: self.body[key] for key in KEPT if key in self.body}


Maker = Callable[[type[BaseModel], Catcher], Fragment]


def from_pydantic(model: type[BaseModel], _: Catcher) -> Fragment:
    schema = {"name": model.__name__, "schema": model.model_json_schema()}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def from_openai(model: type[BaseModel], catcher: Catcher) -> Fragment:
    return catcher.catch(
        lambda: catcher.openai.chat.completions.parse(model="m", messages=MESSAGES, response_format=model)
    )


def from_ollama(model: type[BaseModel], catcher: Catcher) -> Fragment:
    client = ollama.Client("http://x", transport=catcher.transport)
    return catcher.catch(lambda: client.chat(model="m", messages=MESSAGES, format=model.model_json_schema()))


def from_instructor(mode: instructor.Mode) -> Maker:
    def send(model: type[BaseModel], catcher: Catcher) -> Fragment:
        client = instructor.from_openai(catcher.openai, mode=mode)
        return catcher.catch(
            lambda: client.chat.completions.create(model="m", messages=MESSAGES, response_model=model, max_retries=0)
        )

    return send


def from_llama_index(model: type[BaseModel], _: Catcher) -> Fragment:
    return {"tools": [get_function_tool(model).metadata.to_openai_tool()], "tool_choice": "required"}


def from_langchain(
    method: Literal["json_schema", "function_calling"],
) -> Callable[[type[BaseModel], Catcher], Fragment]:
    def send(model: type[BaseModel], catcher: Catcher) -> Fragment:
        chat = ChatOpenAI(
            model="m",
            api_key=SecretStr("unused"),
            base_url="http://x/v1",
            max_retries=0,
            http_client=catcher.http,
        )
        return catcher.catch(lambda: chat.with_structured_output(model, method=method).invoke("Give me an example."))

    return send


CLIENTS: dict[str, Maker] = {
    "pydantic": from_pydantic,
    "openai-python": from_openai,
    "ollama-python": from_ollama,
    "instructor-json": from_instructor(instructor.Mode.JSON_SCHEMA),
    "instructor-tools": from_instructor(instructor.Mode.TOOLS),
    "llama-index": from_llama_index,
    "langchain-json": from_langchain("json_schema"),
    "langchain-tools": from_langchain("function_calling"),
}


def main() -> None:
    catcher = Catcher()
    for client, make in CLIENTS.items():
        fragments = {name: make(model, catcher) for name, model in TYPES.items()}
        path = Path(__file__).with_name(f"{client}.json")
        path.write_text(json.dumps(fragments, indent=1) + "\n")


if __name__ == "__main__":
    main()
