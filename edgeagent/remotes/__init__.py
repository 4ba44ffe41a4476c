"""The remotes that the owner added: where they are, what they serve and what they may cost.

They are stored in a private file in the state folder. The file holds no keys, only where each key is found.
`file` reads and changes it, `check` checks its content, and `keys` finds the keys.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

REMOTES_FILE = "remotes.json"


class EndpointConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """An endpoint of a remote: its base URL, which ends with /v1, and its region."""

    url: str
    region: str = ""


class Key(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a remote's API key is found: an environment variable, a private file, or the system's keyring.

    `name` is the variable's name, the file's absolute path, or the name of the keyring's entry.
    """

    source: Literal["env", "file", "keyring"]
    name: str


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """TLS settings. A setting that is not made is None.

    ca_file: the CA that must have signed the remote's certificate (PEM).
    pin: the SHA-256 that the remote's certificate must have (hex).
    client_certificate, client_key: the certificate that this machine shows to the remote, and its key (PEM).
    """

    ca_file: str | None = None
    pin: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


class Terms(Struct, frozen=True, forbid_unknown_fields=True):
    """What the owner knows about the remote: who runs it, how long it keeps prompts, and whether it trains on them.

    An empty text means unknown.
    """

    operator: str = ""
    retention: str = ""
    training: Literal["unknown", "yes", "no"] = "unknown"


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """The price of a million tokens, in the owner's currency."""

    prompt: float = 0.0
    output: float = 0.0


class Budget(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of spending per UTC day, for all clients together and for each client. None means no limit."""

    tokens: int | None = None
    money: float | None = None
    client_tokens: int | None = None
    client_money: float | None = None


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits for one remote: how many requests may run at a time, and timeouts in seconds.

    connect_s: for the connection, and as long again for its TLS handshake.
    first_token_s: from the start of an attempt, before it is connected, to the first content.
    idle_s: between two events of the answer.
    total_s: for the whole request.
    """

    max_concurrent: int = 64
    connect_s: float = 3.0
    first_token_s: float = 15.0
    idle_s: float = 15.0
    total_s: float = 600.0


class Remote(Struct, frozen=True, forbid_unknown_fields=True):
    """One cluster or server that speaks OpenAI's chat completions.

    models: maps this machine's model names to the remote's names. If it is empty (`serves_any`), the remote is asked
    for any model by the name in the request.
    context_length: in tokens; 0 means the length that the remote states.
    continues: whether the remote may continue an answer that another backend began. "exact" allows this only to servers
    that can continue an assistant's message. "inexact" also allows it to other servers, which are asked in words.
    plaintext: whether an endpoint on another machine may have a URL with http://.
    images, audio: whether its models read images and sounds. A request with what they do not read is not sent there.
    """

    name: str
    endpoints: tuple[EndpointConfig, ...]
    key: Key | None = None
    models: dict[str, str] = field(default_factory=dict)
    context_length: int = 0
    continues: Literal["no", "exact", "inexact"] = "exact"
    tls: Tls = Tls()
    proxy: str | None = None
    price: Price = Price()
    budget: Budget = Budget()
    limits: Limits = Limits()
    terms: Terms = Terms()
    plaintext: bool = False
    images: bool = False
    audio: bool = False

    @property
    def serves_any(self) -> bool:
        """Whether the remote is asked for any model, by the name in the request."""
        return not self.models
