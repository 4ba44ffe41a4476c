"""The valid values of a remote's fields, and the texts of the errors."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edgeagent.errors import ConfigError
from edgeagent.remotes import Budget, EndpointConfig, Key, Limits, Price, Remote, Tls
from edgeagent.remotes.check import checked, complete_url, host_of, is_loopback


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://gpu.example", "https://gpu.example/v1"),
        ("https://gpu.example/", "https://gpu.example/v1"),
        ("https://gpu.example/v1/", "https://gpu.example/v1"),
        ("HTTPS://GPU.Example:8443/team/v1", "https://gpu.example:8443/team/v1"),
        ("https://gpu.example/openai", "https://gpu.example/openai/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ("http://10.0.0.7:8000/v1", "http://10.0.0.7:8000/v1"),
    ],
)
def test_urls_are_completed(text: str, url: str) -> None:
    assert complete_url(text) == complete_url(url) == url


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu.example", "must begin with https://"),
        ("ftp://gpu.example", "must begin with https://"),
        ("https://", "has no valid host"),
        ("https:///v1", "has no valid host"),
        ("https://gpu.example:x/v1", "is not a URL"),
        ("https://gpu.example:70000", "is not a URL"),
        ("https://gpu.example:0", "0 is not a port"),
        ("https://gpu.example/v1?key=hush", "no query and no fragment; use 'https://gpu.example/v1'"),
        ("https://gpu.example/v1#a", "no query and no fragment"),
        ("https://gpu example/v1", "without blanks"),
        ("https://gpu.example/\n", "without blanks"),
        ("https://[fe80::1%25eth0]/v1", "has no valid host"),
        ("https://gpu_é.example", "ASCII"),
        ("https://-x.example", "has no valid host"),
        ("https://" + "a" * 3000, "at most"),
    ],
)
def test_what_is_no_base_url_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        complete_url(text)
    assert "hush" not in raised.value.message


@pytest.mark.parametrize("text", ["https://ann:hush@gpu.example/v1", "https://hush@gpu.example", "ftp://a:hush@x/?y"])
def test_a_password_in_a_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError, match="no user name or password") as raised:
        complete_url(text)
    assert "hush" not in raised.value.message


def test_plain_http_is_for_this_machine_unless_allowed() -> None:
    def remote(url: str, **fields: Any) -> Remote:
        return Remote("gpu", (EndpointConfig("https://a.example"), EndpointConfig(url)), **fields)

    for url in ("http://127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"):
        assert checked(remote(url)) and is_loopback(url)
    for url in ("http://10.0.0.7:8000", "http://gpu:8000", "http://localhost.example"):
        with pytest.raises(ConfigError, match=r"endpoints\[1\]\.url: .* not encrypted.*--plaintext"):
            checked(remote(url))
        assert checked(remote(url, plaintext=True)).endpoints[1].url == f"{url}/v1"


def test_the_host_is_told_with_its_port() -> None:
    assert host_of("https://gpu.example:8443/v1") == "gpu.example:8443"


NAN = math.nan


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a b"}, "a remote's name is letters"),
        ({"name": ""}, "a remote's name is letters"),
        ({"name": "x" * 65}, "a remote's name is letters"),
        ({"endpoints": ()}, "endpoints: must be 1 to 16"),
        (
            {"endpoints": (EndpointConfig("https://a.example"), EndpointConfig("https://a.example/v1/"))},
            "is given twice",
        ),
        ({"endpoints": (EndpointConfig("https://a.example", "\x1b"),)}, r"endpoints\[0\]\.region"),
        ({"key": Key("env", "sk-hush-123")}, "key.name: must be the name of an environment variable"),
        ({"key": Key("file", "key.txt")}, "key.name: must be an absolute path"),
        ({"key": Key("keyring", "")}, "key.name: must be printable"),
        ({"models": {"": "x"}}, "models: a name is 1 to 512"),
        ({"models": {"a": "x\n"}}, "models: a name is 1 to 512"),
        ({"models": {str(number): "x" for number in range(1001)}}, "models: at most 1000"),
        ({"tls": Tls(ca_file="ca.pem")}, "tls.ca_file: must be an absolute path"),
        ({"tls": Tls(client_key="/k.pem")}, "tls.client_key: needs tls.client_certificate"),
        ({"tls": Tls(pin="abc")}, "tls.pin: must be the SHA-256"),
        ({"proxy": "socks5://x"}, "proxy: must begin with https"),
        ({"proxy": "http://ann:hush@x"}, "proxy: a URL must have no user name or password"),
        ({"price": Price(prompt=-1.0)}, "price.prompt: must be 0 or more, not -1.0"),
        ({"price": Price(output=NAN)}, "price.output: must be 0 or more, not nan"),
        ({"budget": Budget(client_money=math.inf)}, "budget.client_money: must be 0 or more, not inf"),
        ({"budget": Budget(tokens=-1)}, "budget.tokens: must be 0 or more"),
        ({"context_length": -1}, "'gpu': context_length: must be 0 or more"),
        ({"limits": Limits(max_concurrent=0)}, "limits.max_concurrent: must be 1 to 4096, not 0"),
        ({"limits": Limits(connect_s=0.0)}, "limits.connect_s: must be more than 0"),
        ({"limits": Limits(idle_s=1e9)}, "limits.idle_s: must be more than 0, at most 86400"),
        ({"limits": Limits(first_token_s=30.0, total_s=20.0)}, "limits.total_s: 20 s is less than"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        checked(Remote(**{"name": "gpu", "endpoints": (EndpointConfig("https://a.example"),), **fields}))
    assert "hush" not in raised.value.message


def test_a_remote_of_defaults_is_right() -> None:
    remote = checked(Remote("gpu", (EndpointConfig("https://a.example/v1"),)))
    assert checked(remote) == remote and remote.serves_any
