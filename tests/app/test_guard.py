"""Only a browser that was given the token, on the app's own address, gets through; other pages cannot drive the app."""

import asyncio

import pytest

from tensorveil.app.guard import Guard

PORT, TOKEN, LIMIT = 4321, "the-token", 1000
HERE = f"127.0.0.1:{PORT}"
COOKIE = f"tensorveil-{PORT}={TOKEN}"


def ask(kind="http", method="GET", path="/", query="", body=(b"",), **headers):
    """What a request gets: status and headers of the answer, and whether the app behind the guard saw it."""
    sent, seen = [], []

    async def inner(scope, receive, send):
        seen.append(scope["path"])
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    parts = [
        {"type": "http.request", "body": part, "more_body": place + 1 < len(body)} for place, part in enumerate(body)
    ]

    async def receive():
        return parts.pop(0)

    async def send(message):
        sent.append(message)

    given = {"host": HERE, **{name.replace("_", "-"): value for name, value in headers.items()}}
    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given.items() if value is not None],
    }
    asyncio.run(Guard(inner, PORT, LIMIT, TOKEN)(scope, receive, send))
    first = sent[0]
    return first.get("status", first["type"]), dict(first.get("headers", [])), bool(seen)


def test_the_address_that_is_printed_gives_a_cookie_that_scripts_and_other_sites_do_not_get():
    status, headers, seen = ask(query=f"token={TOKEN}")
    assert (status, headers[b"location"], seen) == (303, b"/", False)
    cookie = headers[b"set-cookie"].decode()
    assert cookie.startswith(COOKIE)
    assert "HttpOnly" in cookie
    assert "SameSite" in cookie
    assert ask(cookie=cookie.partition(";")[0])[0] == 200


def test_a_new_guard_has_a_token_of_its_own():
    first, second = Guard(ask, PORT, LIMIT), Guard(ask, PORT, LIMIT)
    assert first.token != second.token
    assert len(first.token) >= 40
    assert first.address == f"http://{HERE}/?token={first.token}"


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"query": "token=wrong"},
        {"query": f"token={TOKEN}&token=x"},
        {"path": "/assets/app.css", "query": f"token={TOKEN}"},
        {"cookie": f"tensorveil-{PORT}=wrong"},
        {"cookie": f"tensorveil-{PORT + 1}={TOKEN}"},
        {"cookie": "\x01=;;"},
        {"cookie": COOKIE, "host": None},
        {"cookie": COOKIE, "host": f"evil.example:{PORT}"},
        {"cookie": COOKIE, "host": "127.0.0.1"},
        {"cookie": COOKIE, "origin": "http://evil.example"},
        {"cookie": COOKIE, "origin": "null"},
        {"cookie": COOKIE, "origin": f"https://{HERE}"},
        {"cookie": COOKIE, "method": "POST"},
        {"cookie": COOKIE, "method": "POST", "origin": "http://127.0.0.1:1"},
    ],
)
def test_others_are_refused_before_the_app_sees_them(request_):
    status, headers, seen = ask(**request_)
    assert (status, seen) == (403, False)
    assert b"set-cookie" not in headers


@pytest.mark.parametrize("more", [{}, {"origin": "http://evil.example"}, {"origin": f"http://localhost:{PORT}"}])
def test_a_socket_needs_the_cookie_and_the_origin_of_the_app(more):
    assert ask(kind="websocket", cookie=COOKIE, **more)[0::2] == ("websocket.close", False)
    assert ask(kind="websocket", origin=f"http://{HERE}")[0::2] == ("websocket.close", False)
    assert ask(kind="websocket", cookie=COOKIE, origin=f"http://{HERE}")[0::2] == ("websocket.accept", True)


def test_localhost_is_this_computer_too():
    host = f"localhost:{PORT}"
    assert ask(cookie=COOKIE, host=host, method="POST", origin=f"http://{host}")[0] == 200


@pytest.mark.parametrize("stated", [True, False])
def test_a_body_beyond_the_limit_is_refused_whether_its_length_is_stated_or_not(stated):
    own = {"method": "POST", "cookie": COOKIE, "origin": f"http://{HERE}"}
    for size, status in ((LIMIT, 200), (LIMIT + 1, 413)):
        length = {"content_length": str(size)} if stated else {}
        assert ask(body=(b"x" * 600, b"x" * (size - 600)), **own, **length)[0] == status
    assert ask(**own, content_length="many")[0] == 413


def test_the_browser_is_told_to_load_nothing_from_elsewhere():
    policy = ask(cookie=COOKIE)[1][b"content-security-policy"].decode()
    sources = [word for part in policy.split(";") for word in part.split()[1:]]
    assert {word for word in sources if "//" in word} == {f"ws://{HERE}", f"ws://localhost:{PORT}"}
    assert "default-src 'self'" in policy
    assert "*" not in policy
