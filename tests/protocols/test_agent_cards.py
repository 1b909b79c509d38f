"""Cards of agents and envs, and where their URLs lead (spec 11, 12)."""

from __future__ import annotations

import pytest

from pytest_harbor.errors import ProtocolError
from pytest_harbor.protocols import data_plane
from pytest_harbor.protocols.addresses import below, is_local, origin, proxy_for, shown
from pytest_harbor.protocols.agent_card import AGENT_CONFIG, TRAJECTORY, parse_card

BASE = "http://10.0.0.5:8000"


def read(card, base=BASE, **options):
    return parse_card({"name": "a", **card}, base, f"{base}/card", **options)


def interface(url, version="1.0", binding="JSONRPC"):
    return {"url": url, "protocolBinding": binding, "protocolVersion": version}


@pytest.mark.parametrize(
    ("card", "url", "wire"),
    [
        ({"url": "http://localhost:8000/rpc"}, f"{BASE}/rpc", "0.3"),
        ({"url": "http://localhost:8000/"}, f"{BASE}/", "0.3"),
        ({"url": "/rpc", "protocolVersion": "0.2.6"}, f"{BASE}/rpc", "0.3"),
        ({"url": "/rpc", "protocolVersion": "1.0"}, f"{BASE}/rpc", "1.0"),
        ({}, f"{BASE}/a2a", "0.3"),
        ({"supportedInterfaces": [interface("http://x/v1")]}, f"{BASE}/v1", "1.0"),
        (
            {
                "supportedInterfaces": [
                    interface("/old", "0.3"),
                    interface("/new", "1.1"),
                ]
            },
            f"{BASE}/new",
            "1.0",
        ),
        (
            {
                "supportedInterfaces": [
                    interface("/g", "1.0", "GRPC"),
                    interface("/o", "0.3"),
                ]
            },
            f"{BASE}/o",
            "0.3",
        ),
        (
            {
                "url": "grpc://x:1",
                "preferredTransport": "GRPC",
                "additionalInterfaces": [{"url": "/json", "transport": "JSONRPC"}],
            },
            f"{BASE}/json",
            "0.3",
        ),
    ],
)
def test_interface(card, url, wire):
    found = read(card)
    assert (found.url, found.wire) == (url, wire)


def test_persons_endpoint_elsewhere():
    card = {"url": "https://chat.example/a2a"}
    assert read(card).url == f"{BASE}/a2a"
    assert read(card, same_origin=False).url == "https://chat.example/a2a"
    assert read({"url": "file:///etc/passwd"}, same_origin=False).url.startswith(BASE)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ([], "no agent card"),
        ({"url": "/a2a"}, "no agent card"),
        ({"name": ""}, "no agent card"),
        (
            {"name": "a", "supportedInterfaces": [interface("/", "1.0", "GRPC")]},
            "offers GRPC only",
        ),
    ],
)
def test_no_agent_card(card, message):
    with pytest.raises(ProtocolError, match=message):
        parse_card(card, BASE, f"{BASE}/card")


def test_extensions():
    request = {"supported": ["model"], "required": ["task_id"], "optional": ["effort"]}
    card = read(
        {
            "capabilities": {
                "extensions": [
                    {
                        "uri": AGENT_CONFIG,
                        "params": {
                            "endpoint": "/ext/agent-config",
                            "methods": {"set": {"request": request}},
                        },
                    },
                    {"uri": TRAJECTORY},
                    "rubbish",
                    {"uri": 7},
                ]
            }
        }
    )
    config = card.extensions[AGENT_CONFIG]
    assert config.endpoint == "/ext/agent-config"
    assert config.takes("set") == {"model", "task_id", "effort"}
    assert config.takes("get") == frozenset()
    assert card.has(AGENT_CONFIG)
    assert not card.has(TRAJECTORY)  # without an endpoint nobody can call it
    assert read({"capabilities": [1]}).extensions == {}


def test_env_card():
    card = data_plane.parse_card(
        {
            "name": "mail",
            "url": "http://0.0.0.0:18765/agentenv",
            "additionalInterfaces": [{"url": "/mcp/", "transport": "mcp"}],
            "capabilities": {
                "operations": ["data/get"],
                "tools": [{"name": "send"}, 3],
            },
            "protocolVersion": "1.0",
        },
        BASE,
    )
    assert (card.name, card.data_url, card.mcp_url) == (
        "mail",
        f"{BASE}/agentenv",
        f"{BASE}/mcp/",
    )
    assert card.operations == {"data/get"}
    assert card.tools == ({"name": "send"},)
    assert card.raw["protocolVersion"] == "1.0"


def test_env_card_says_little():
    card = data_plane.parse_card({"name": "mail"}, BASE)
    assert (card.data_url, card.mcp_url) == (f"{BASE}/agentenv", f"{BASE}/mcp")
    assert card.operations == {"data/reset", "data/add", "data/get"}
    none = data_plane.parse_card(
        {"name": "mail", "capabilities": {"operations": []}}, BASE
    )
    assert none.operations == frozenset()


@pytest.mark.parametrize("card", [[], {}, {"name": 3}])
def test_no_env_card(card):
    with pytest.raises(ProtocolError, match="env card"):
        data_plane.parse_card(card, BASE)


@pytest.mark.parametrize(
    ("declared", "base", "url"),
    [
        ("/ext/x", "http://h:1/agents/a", "http://h:1/agents/a/ext/x"),
        ("http://o/agents/a/rpc", "http://h:1/agents/a", "http://h:1/agents/a/rpc"),
        ("http://o/rpc", "http://h:1/agents/a", "http://h:1/agents/a/rpc"),
        ("//evil/rpc", "http://h:1", "http://h:1/rpc"),
        ("http://h:1@evil/rpc", "http://h:1", "http://h:1/rpc"),
        ("/rpc?v=1", "http://h:1/", "http://h:1/rpc?v=1"),
        ("http://o", "http://h:1", "http://h:1/"),
    ],
)
def test_below(declared, base, url):
    assert below(base, declared) == url


@pytest.mark.parametrize("url", ["file:///etc/passwd", "h:1", "http://", "gopher://h"])
def test_no_origin(url):
    with pytest.raises(ValueError, match="no http or https URL"):
        origin(url)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://172.17.0.3:8000", True),
        ("http://localhost", True),
        ("http://mail", True),
        ("http://host.docker.internal:1", True),
        ("https://api.openai.com/v1", False),
        ("http://8.8.8.8", False),
    ],
)
def test_proxies_are_for_others(url, local, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("https_proxy", "proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert is_local(url) is local
    assert proxy_for(url) == (None if local else "http://proxy:3128")


def test_no_proxy_is_heard(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "example.org")
    assert proxy_for("https://example.org/x") is None


def test_shown_hides_secrets():
    assert shown("http://u:p@h:1/x?key=1#f") == "http://h:1/x"


def test_time_limit():
    assert data_plane.time_limit(0) == 900
    assert data_plane.time_limit(500_000_000) == 1500
    assert data_plane.time_limit(10**12) == 3600
    assert data_plane.time_limit(10**9, base=1, per_gigabyte=2) == 3


def test_file_parts(tmp_path):
    file = tmp_path / "inbox.json"
    file.write_text("{}")
    assert data_plane.uri_part("file:///data/inbox.json", name="inbox.json") == {
        "kind": "file",
        "file": {"uri": "file:///data/inbox.json", "name": "inbox.json"},
    }
    assert data_plane.bytes_part(file) == {
        "kind": "file",
        "file": {"bytes": "e30=", "mimeType": "application/json", "name": "inbox.json"},
    }
    with file.open("wb") as big:
        big.truncate(data_plane.MAX_INLINE_BYTES + 1)
    with pytest.raises(ValueError, match=r"inbox.json has 8.0 MiB; at most 8 MiB"):
        data_plane.bytes_part(file)
