"""Who is refused, for what, and in whose words."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.engines.endpoint import Endpoint, Reply, said
from tests.engines.fault_server import FaultServer, Hang, until
from tests.gateway.gateways import ASKED, gateway, offers

from ramify.core.errors import ConfigError
from ramify.edge.web_server import WebLimits
from ramify.gateway.chat_request import chat_request
from ramify.gateway.clients import Client, ClientLimits, Clients, keys_in, read_keys
from ramify.gateway.server import GatewayConfig, is_loopback
from ramify.gateway.tailored import RequestLimits
from ramify.runner.saved import Saved

KEY, OTHER = "sk-gateway-0123456789", "sk-gateway-abcdefghij"
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]


# -- what is no request -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": ["x"]}, "messages[0]", "an object with role and content"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "system, developer, user"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "a text or a list of texts"),
        ({"messages": IMAGE}, "messages[0].content[0]", "'image_url' is not supported"),
        ({"messages": [{"role": "system", "content": " "}]}, "messages", "no text"),
        ({"model": ""}, "model", "GET /v1/models"),
        ({"n": 0}, "n", "from 1 to 128"),
        ({"n": True}, "n", "from 1 to 128"),
        ({"temperature": 3}, "temperature", "from 0 to 2"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"max_tokens": 0}, "max_tokens", "from 1"),
        ({"max_tokens": 40_000}, "max_tokens", "at most 32768"),
        ({"stream": "yes"}, "stream", "true or false"),
        ({"seed": 1.5}, "seed", "whole number"),
        ({"logprobs": True}, "logprobs", "no logprobs are kept"),
        ({"top_logprobs": 3}, "top_logprobs", "no logprobs are kept"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"modalities": ["text", "audio"]}, "modalities", "only text"),
        ({"ramify": {"bugdet": {}}}, "ramify.bugdet", "did you mean 'budget'"),
        ({"ramify": {"budget": {"decode_token": 5}}}, "ramify.budget.decode_token", "did you mean 'decode_tokens'"),
        ({"ramify": {"budget": {"decode_tokens": 0}}}, "ramify.budget.decode_tokens", "above 0"),
        ({"ramify": {"budget": {"decode_tokens": 1.5}}}, "ramify.budget.decode_tokens", "above 0"),
        ({"ramify": {"budget": {"dollars": 1}}}, "ramify.budget.dollars", "has none; set engine.prices"),
        ({"ramify": {"options": {"n": 5}}}, "ramify.options", "one sample has none"),
        ({"model": "self_consistency", "ramify": {"options": {"k": 5}}}, "ramify.options", "unknown key"),
        ({"model": "self_consistency", "ramify": {"options": {"n": 5000}}}, "ramify.options.n", "at most 1000"),
        ({"model": "self_consistency", "ramify": {"options": {"n": 0}}}, "ramify.options", "at least 1"),
        ({"model": "self_consistency", "ramify": {"options": {"vote": "x"}}}, "ramify.options", "vote"),
        (
            {"model": "self_consistency", "ramify": {"options": {"judge": "j", "vote": "best"}}},
            "ramify.options",
            "judge",
        ),
        ({"x": {"y": [10**30]}}, "x", "beyond 64 bits"),
        ({"messages": [{"role": "user", "content": "x", "y": -(10**30)}]}, "messages", "beyond 64 bits"),
        ({"seed": 1 << 64}, "seed", "beyond 64 bits"),
        ({"x": json.loads("[" * 40 + "]" * 40)}, "x", "nested more than 32 deep"),
    ],
)
async def test_a_bad_request_is_told_its_field_and_what_is_allowed(
    tmp_path: Path, fields: dict[str, Any], param: str, message: str
) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard = await asking.chat(**{"model": "m", "messages": ASKED, **fields})
    assert heard.status == 400
    assert heard.error["param"] == param
    assert message in heard.error["message"]
    assert heard.error["type"] == "invalid_request_error"
    assert not endpoint.requests


@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"x"', '{"model": "m"', "[" * 100_000, b"\xff\xfe{}"])
async def test_a_body_that_is_no_object_is_refused(tmp_path: Path, body: str | bytes) -> None:
    with Endpoint(lambda _: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            assert (await asking.post(body)).status == 400


ODD: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "\u0000\ud83d\ude00\u202e\x1e<|im_start|>{0}{answer}%s"}]},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": "odd"}, *ASKED]},
    {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": {"x": 1e308}}}]},
            *ASKED,
        ]
    },
    {"messages": [{"role": "user", "content": "x" * 100_000}]},
    {"messages": [*ASKED, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]},
    {"tools": "odd", "response_format": [], "user": {"a": [True, 0.1]}, "": "x"},
    {"ramify": {"seed": -5}},
]


@pytest.mark.parametrize("fields", ODD)
async def test_odd_requests_are_answered_and_harm_nobody(tmp_path: Path, fields: dict[str, Any]) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["best_of_n"]) as asking:
            odd = await asking.chat(**{"model": "m", "messages": ASKED, **fields})
            searched = await asking.chat(
                **{"model": "best_of_n", "messages": ASKED, **fields, "ramify": {"options": {"n": 2}}}
            )
            assert (await asking.chat("m")).content == "42"
    assert (odd.status, searched.status) == (200, 200)
    assert Saved.open(searched.place[0]).tree(searched.place[1]) is not None


@pytest.mark.parametrize(
    "body", ['{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', '{"model": 1e999}']
)
async def test_texts_that_are_no_text_are_refused(tmp_path: Path, body: str) -> None:
    with Endpoint(lambda _: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["best_of_n"]) as asking:
            assert (await asking.post(body)).status == 400
            assert (await asking.chat("m")).status == 200


def test_nulls_count_as_absent() -> None:
    body = {"model": "m", "messages": ASKED, "stop": None, "n": None, "tools": None, "ramify": None, "logprobs": None}
    assert chat_request(json.dumps(body).encode()).fields == {}


async def test_an_option_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'was_here')!r}, 'w').close()\ndef f(): ...\n")
    async with gateway(None, tmp_path / "runs", ["mcts", "beam"]) as asking:
        for options in ({"judge": f"{tmp_path}/evil.py:f"}, {"choose": f"{tmp_path}/evil.py:f"}):
            heard = await asking.chat("mcts", ramify={"options": options})
            assert (heard.status, heard.error["param"]) == (400, "ramify.options")
    assert not (tmp_path / "was_here").exists()


async def test_an_engine_of_tokens_refuses_what_it_has_no_place_for(tmp_path: Path) -> None:
    async with gateway(None, tmp_path, ["best_of_n"]) as asking:
        heard = await asking.chat("best_of_n", response_format={"type": "json_object"})
        assert (heard.status, heard.error["param"]) == (400, "response_format")
        ignored = {"tools": [], "user": "eve", "response_format": {"type": "text"}, "store": False}
        asked = [{"role": "user", "content": "make 24 from 4 6 8 2"}]
        assert (await asking.chat("builtin", asked, **ignored)).status == 200


# -- models -----------------------------------------------------------------------------------------------------------


async def test_an_unknown_model_is_told_the_nearest_and_one_that_is_not_served_why(tmp_path: Path) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path) as asking:
            unknown, not_served = await asking.chat("mctrs"), await asking.chat("m@beam")
            found = await asking.get("/v1/models/nobody")
    assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
    assert "did you mean 'mctsr'" in unknown.error["message"]
    assert not_served.status == found.status == 404
    assert "the run has no such judge" in not_served.error["message"]


@pytest.mark.slow
def test_every_search_that_the_engine_can_run_is_offered() -> None:
    served = offers("http://127.0.0.1:9/v1")
    names = [offer.name for offer in served]
    assert names[0] == "m"
    assert {"mctsr", "best_of_n", "ab_mcts", "self_consistency", "adaptive_consistency", "refine_chain"} <= set(names)
    assert not {"arpo", "chains", "treerl"} & {*names, *served.not_served}
    assert "nobody judges them" in served.not_served["reject"]
    assert {"beam", "mcts", "rstar_mcts", "reject"} <= {offer.name for offer in offers(None)}


@pytest.mark.parametrize(
    ("presets", "settings", "message"),
    [
        (["mctrs"], {}, "did you mean .*'mctsr'"),
        (["beam"], {}, "--preset beam: .*no such judge"),
        (["arpo"], {}, "--preset arpo: "),
        (["treepo"], {}, "chooses no answer"),
        (["mctsr"], {"run_limits__decode": 5}, "--tokens-a-day"),
    ],
)
def test_what_cannot_be_served_is_refused_before_the_start(
    presets: list[str], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        offers("http://127.0.0.1:9/v1", presets, **settings)


# -- who asks ---------------------------------------------------------------------------------------------------------


async def test_a_key_is_needed_where_there_are_keys(tmp_path: Path) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        config = GatewayConfig(keys=[KEY, OTHER])
        async with gateway(endpoint.url, tmp_path, ["self_consistency"], config) as asking:
            for authorization in ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", f"Bearer {KEY} {OTHER}"):
                asking.headers = {"Authorization": authorization}
                for heard in (await asking.chat("m"), await asking.get("/v1/models")):
                    assert (heard.status, heard.error["code"]) == (401, "invalid_api_key")
                    assert KEY not in json.dumps(heard.body)
            assert (await asking.get("/health")).status == 200
            for key in (KEY, OTHER):
                asking.headers = {"Authorization": f"Bearer {key}"}
                assert (await asking.chat("m")).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_other_addresses_than_loopback_need_keys(host: str) -> None:
    with pytest.raises(ConfigError, match="only a loopback address is served without keys"):
        GatewayConfig(host=host)
    assert GatewayConfig(host=host, keys=[KEY]).host == host


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("10.0.0.1", False)],
)
def test_loopback_addresses_are_known(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil:80"]
)
async def test_a_loopback_gateway_answers_only_requests_for_it(tmp_path: Path, host: str) -> None:
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            for heard in (await asking.get("/health", Host=host), await asking.post("{}", Host=host)):
                assert (heard.status, heard.error["code"]) == (403, "host")
            port = asking.url.rpartition(":")[2]
            assert (await asking.get("/health", Host=f"localhost:{port}")).status == 200


async def test_what_a_web_page_may_send_without_asking_is_refused(tmp_path: Path) -> None:
    """A page of another origin can post forms and plain text. Anything else it must ask for; no answer allows it."""
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            body = json.dumps({"model": "m", "messages": ASKED})
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                assert (await asking.post(body, **{"Content-Type": kind})).status == 415
            heard = await asking.post(body, Origin="http://evil.example")
            assert not [name for name in heard.headers if name.lower().startswith("access-control")]
            async with asking.session.options(f"{asking.url}/v1/chat/completions") as response:
                assert response.status == 405
    assert len(endpoint.requests) == 1


async def test_bodies_are_bounded(tmp_path: Path) -> None:
    config = GatewayConfig(web=WebLimits(max_body_bytes=2000))
    with Endpoint(lambda body: said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"], config) as asking:
            heard = await asking.chat("m", [{"role": "user", "content": "x" * 3000}])
    assert heard.status == 413
    assert "2000 bytes" in heard.error["message"]


async def test_too_many_requests_in_flight_of_one_client_are_refused(tmp_path: Path) -> None:
    answer = lambda received: json.dumps({"data": [{"id": "m"}]}).encode()  # noqa: E731
    hangs = lambda received: Hang() if received.method == "POST" else None  # noqa: E731
    config = GatewayConfig(keys=[KEY, OTHER], clients=ClientLimits(max_in_flight=2))
    served = lambda url: gateway(url, tmp_path, ["self_consistency"], config)  # noqa: E731
    async with FaultServer(answer, hangs) as server, served(server.url) as asking:
        asking.headers = {"Authorization": f"Bearer {KEY}"}
        waiting = [asyncio.create_task(asking.chat("m")) for _ in range(2)]
        await until(lambda: server.num_active == 2)
        heard = await asking.chat("m")
        assert (heard.status, heard.headers["Retry-After"]) == (429, "1")
        asking.headers = {"Authorization": f"Bearer {OTHER}"}
        other = asyncio.create_task(asking.chat("m"))
        await until(lambda: server.num_active == 3)
        for task in (*waiting, other):
            task.cancel()
        await asyncio.wait([*waiting, other])


async def test_tokens_a_day_are_counted_for_each_key(tmp_path: Path) -> None:
    config = GatewayConfig(keys=[KEY, OTHER], clients=ClientLimits(max_tokens_a_day=5))
    with Endpoint(lambda body: said("42", usage=(7, 3))) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"], config) as asking:
            asking.headers = {"Authorization": f"Bearer {KEY}"}
            statuses = [(await asking.chat("m")).status for _ in range(3)]
            assert statuses == [200, 200, 429]
            heard = await asking.chat("m")
            assert heard.error["code"] == "insufficient_quota"
            assert "6 tokens were sampled for you today; at most 5" in heard.error["message"]
            assert 0 < int(heard.headers["Retry-After"]) <= 86_400
            asking.headers = {"Authorization": f"Bearer {OTHER}"}
            assert (await asking.chat("m")).status == 200


def test_a_new_day_begins_at_midnight() -> None:
    now = [86_399.0]
    clients = Clients(ClientLimits(max_tokens_a_day=5), now=lambda: now[0])
    client = clients.of(None)
    clients.charge(client, 5)
    with pytest.raises(Exception, match="at most 5"), clients.admitted(client):
        pass
    now[0] = 86_400.0
    with clients.admitted(client):
        assert clients.num_in_flight == 1
    assert client == Client("anybody", day=1)


async def test_a_request_may_sample_as_much_as_the_gateway_allows(tmp_path: Path) -> None:
    config = GatewayConfig(requests=RequestLimits(max_tokens=100, max_answer_tokens=50))
    model = lambda body: said("42", usage=(7, min(30, body["max_tokens"])))  # noqa: E731
    with Endpoint(model) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"], config) as asking:
            heard = await asking.chat("self_consistency")
            assert heard.body["usage"]["completion_tokens"] <= 100
            more = await asking.chat("self_consistency", ramify={"budget": {"decode_tokens": 101}})
            longer = await asking.chat("m", max_tokens=51)
    assert (more.status, more.error["param"]) == (400, "ramify.budget.decode_tokens")
    assert "at most 100 here" in more.error["message"]
    assert (longer.status, longer.error["param"]) == (400, "max_tokens")


# -- keys -------------------------------------------------------------------------------------------------------------


def test_keys_are_read_one_a_line_or_between_commas(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# our clients\n{KEY}  # Eve\n\n{OTHER}\n")
    assert read_keys(tmp_path / "keys", "sk-not-read-0123456789") == [KEY, OTHER]
    assert read_keys(None, f"{KEY},{OTHER}") == [KEY, OTHER]
    assert read_keys(None, None) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [("short", "key 1 of 1 is no key: it has 5 characters"), (f"{KEY}\n{KEY}", "twice"), (f"{KEY} and", "is no key")],
)
def test_a_text_that_is_no_key_is_refused_without_being_shown(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        keys_in(text, where="--keys keys")
    assert not any(word in str(caught.value) for word in text.split())


def test_a_key_file_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        read_keys(tmp_path / "nowhere", None)
    (tmp_path / "empty").write_text("# none\n")
    with pytest.raises(ConfigError, match="no key in it"):
        read_keys(tmp_path / "empty", None)


# -- what the endpoint says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "expected", "kind"),
    [
        (400, 400, "invalid_request_error"),
        (422, 400, "invalid_request_error"),
        (401, 502, "upstream_error"),
        (404, 502, "upstream_error"),
        (500, 502, "upstream_error"),
    ],
)
async def test_the_endpoints_own_words_come_back_without_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, expected: int, kind: str
) -> None:
    secret = "sk-upstream-0123456789"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    words = json.dumps({"error": {"message": f"tools[0] is odd (key {secret})"}}).encode()
    quick = {"engine.retry.max_tries": 1}
    with Endpoint(lambda body: Reply(words, status)) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"], **quick) as asking:
            heard = await asking.chat("m")
            again = await asking.chat("self_consistency", ramify={"options": {"n": 3}})
    assert (heard.status, heard.error["type"]) == (again.status, again.error["type"]) == (expected, kind)
    assert "tools[0] is odd (key ***)" in heard.error["message"]
    assert secret not in json.dumps(heard.body)


async def test_a_spent_quota_of_the_endpoint_is_429(tmp_path: Path) -> None:
    spent = json.dumps({"error": {"message": "You are out of money", "code": "insufficient_quota"}}).encode()
    with Endpoint(lambda body: Reply(spent, 429)) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard = await asking.chat("m")
    assert (heard.status, heard.error["type"]) == (429, "rate_limit_error")
    assert "You are out of money" in heard.error["message"]
    assert "Retry-After" in heard.headers


async def test_a_conversation_that_is_too_long_is_told_so(tmp_path: Path) -> None:
    words = json.dumps({"error": {"message": "This model's maximum context length is 100 tokens"}}).encode()
    with Endpoint(lambda body: Reply(words, 400)) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard = await asking.chat("m")
    assert (heard.status, heard.error["code"]) == (400, "context_length_exceeded")


async def test_some_failed_samples_do_not_spoil_an_answer(tmp_path: Path) -> None:
    number = iter(range(100))
    odd = Reply(b'{"error": {"message": "odd"}}', 400)
    with Endpoint(lambda body: odd if next(number) % 2 else said("42")) as endpoint:
        async with gateway(endpoint.url, tmp_path, ["self_consistency"]) as asking:
            heard = await asking.chat("self_consistency", ramify={"options": {"n": 4}})
    assert heard.content == "42"
    assert heard.body["ramify"]["candidates"] == 2


async def test_time_that_is_over_is_504(tmp_path: Path) -> None:
    answer = lambda received: json.dumps({"data": [{"id": "m"}]}).encode()  # noqa: E731
    hangs = lambda received: Hang() if received.method == "POST" else None  # noqa: E731
    async with FaultServer(answer, hangs) as server, gateway(server.url, tmp_path, ["self_consistency"]) as asking:
        heard = await asking.chat("m", ramify={"budget": {"seconds": 0.1}})
    assert (heard.status, heard.error["type"]) == (504, "timeout_error")


async def test_an_endpoint_that_is_gone_is_503_and_the_gateway_goes_on_when_it_is_back(tmp_path: Path) -> None:
    answer = lambda received: json.dumps({"data": [{"id": "m"}]} if received.method == "GET" else said("42")).encode()  # noqa: E731
    server = FaultServer(answer)
    await server.up()
    quick = {"engine.retry.max_down_s": 0.3, "engine.retry.base_s": 0.05, "engine.retry.cap_s": 0.1}
    async with gateway(server.url, tmp_path, ["self_consistency"], **quick) as asking:
        assert (await asking.chat("m")).status == 200
        await server.down()
        heard = await asking.chat("m")
        assert (heard.status, heard.error["code"]) == (503, "engines_down")
        assert "unreachable" in heard.error["message"]
        await server.up()
        assert (await asking.chat("m")).status == 200
    await server.down()
