"""The page's server: this machine only, one browser, images by number.

Every request must name this machine as its host; every other than for the page's own three files
needs the cookie, which the one-time token of the printed address is exchanged for; every POST must
come from the page itself. Each answer forbids the browser whatever the page does not need.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast

from vinoreward.errors import DatasetError, RunFolderError, needed_for
from vinoreward_training.labelling.labels import ANSWERS, Answer
from vinoreward_training.labelling.session import OutdatedError, Session

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
MAX_BODY = 4096
"""Bytes of a request's body; a label has a hundred."""
PATIENCE = 5.0
"""Seconds within which a request must have arrived."""
PAGE = {"": "index.html", "page.js": "page.js", "page.css": "page.css"}
"""Path to the file of the page."""
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""


def listening(port: int) -> socket.socket:
    """Return a socket at this machine's own address; 0 is any free port."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((HOST, port))
    except (OSError, OverflowError) as error:
        server.close()
        raise RunFolderError(
            f"port {port} of {HOST} cannot be used: {error}. Expected a free one; choose another "
            "with --port, or leave it out."
        ) from error
    return server


class Door:
    """The one-time token, and the cookie that it is exchanged for."""

    def __init__(self, port: int) -> None:
        self.token: str | None = secrets.token_urlsafe(32)
        self.cookie = f"vinoreward-label-{port}"
        """Cookies do not tell ports apart."""
        self._key = secrets.token_urlsafe(32)

    def enter(self, token: object) -> str | None:
        """Return the cookie's value for the token, which then is spent; None for another one."""
        if self.token is None or not isinstance(token, str):
            return None
        if not hmac.compare_digest(_bytes(token), _bytes(self.token)):
            return None
        self.token = None
        return self._key

    def is_open(self, value: str | None) -> bool:
        """Return whether a cookie has the right value."""
        return value is not None and hmac.compare_digest(_bytes(value), _bytes(self._key))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class Guarded:
    """Refuses other hosts, other origins and large bodies, before anything else sees a request."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}".encode() for name in (HOST, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a refusal."""
        if scope["type"] != "http":
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        given: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name, []).append(value)
        refusal = self._refusal(scope["method"], given)
        if refusal is None:
            body = b"" if scope["method"] in ("GET", "HEAD") else await _body(receive)
            if body is not None:
                await self.app(scope, _received(body), answer)
                return
            refusal = (413, f"The body is larger than {MAX_BODY} bytes.")
        status, why = refusal
        await _respond({"error": why}, status)(scope, receive, answer)

    def _refusal(self, method: str, given: dict[bytes, list[bytes]]) -> tuple[int, str] | None:
        host = given.get(b"host", [])
        if len(host) != 1 or host[0] not in self.hosts:
            return 421, "This is no page for that host."
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, "The page does not ask that."
        if given.get(b"origin") != [b"http://" + host[0]]:
            return 403, "Only the page itself may ask that."
        if given.get(b"content-type") != [b"application/json"]:
            return 415, "Expected JSON."
        return None


async def _body(receive: Receive) -> bytes | None:
    """Return a request's body; None if it is too large."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        body += bytes(message.get("body", b""))
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body", False):
            return body


def _received(body: bytes) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    return receive


def _respond(value: object, status: int = 200) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(value, status)


def application(session: Session, door: Door, port: int, following: Callable[[], str]) -> ASGIApp:
    """Return the ASGI application; ``following`` says which command comes next."""
    with needed_for("vinoreward label", "label"):
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import Response as Plain
        from starlette.routing import Route

    page = files("vinoreward_training.labelling") / "page"

    def asset(request: Request) -> Response:
        name = PAGE[request.url.path.lstrip("/")]
        kind = _KINDS[name[name.rindex(".") :]]
        return Plain((page / name).read_bytes(), media_type=kind)

    async def enter(request: Request) -> Response:
        key = door.enter((await _values(request)).get("token"))
        if key is None:
            return _respond(
                {
                    "error": "This address was used before, or is not complete. Stop vinoreward "
                    "label with Ctrl-C and start it again: it goes on where you were."
                },
                403,
            )
        response = _respond({})
        response.set_cookie(door.cookie, key, path="/", httponly=True, samesite="strict")
        return response

    def inside(answer: Callable[[dict[str, Any], Request], Response]) -> Callable[..., Any]:
        """Return an endpoint for those with the cookie; it does not block others."""

        async def endpoint(request: Request) -> Response:
            if not door.is_open(request.cookies.get(door.cookie)):
                error = "Open the address that vinoreward label printed."
                return _respond({"error": error}, 401)
            values = await _values(request) if request.method == "POST" else {}
            return await run_in_threadpool(_told, answer, values, request)

        return endpoint

    def _told(
        answer: Callable[[dict[str, Any], Request], Response],
        values: dict[str, Any],
        request: Request,
    ) -> Response:
        try:
            return answer(values, request)
        except OutdatedError as error:
            return _respond({"error": str(error), "state": session.state()}, 409)
        except RunFolderError as error:
            return _respond({"error": str(error)}, 507)
        except DatasetError as error:
            return _respond({"error": str(error)}, 422)

    def state(values: dict[str, Any], request: Request) -> Response:
        return _respond(session.state())

    def label(values: dict[str, Any], request: Request) -> Response:
        number, answer, seconds = (values.get(name) for name in ("image", "label", "seconds"))
        if type(number) is not int or answer not in ANSWERS or type(seconds) not in (int, float):
            return _respond({"error": "Expected image, label and seconds."}, 400)
        if not 0 <= cast(float, seconds) < 1e9:  # NaN too
            return _respond({"error": "Expected seconds of at least 0."}, 400)
        session.answer(number, cast(Answer, answer), float(cast(float, seconds)))
        return _respond(session.state())

    def undo(values: dict[str, Any], request: Request) -> Response:
        if type(values.get("done")) is not int:
            return _respond({"error": "Expected done."}, 400)
        session.undo(values["done"])
        return _respond(session.state())

    def summary(values: dict[str, Any], request: Request) -> Response:
        return _respond({**session.summary(), "next": following()})

    def image(values: dict[str, Any], request: Request) -> Response:
        number = request.path_params["number"]
        # Python refuses to read thousands of digits.
        data = session.png(int(number)) if number.isdecimal() and len(number) < 10 else None
        if data is None:
            return _respond({"error": "There is no such image now."}, 404)
        return Plain(data, media_type="image/png")

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return _respond({"error": "There is no such page."}, status)

    from starlette.concurrency import run_in_threadpool

    app: Starlette = Starlette(
        routes=[
            *(Route(f"/{path}", asset) for path in PAGE),
            Route("/favicon.ico", lambda request: Plain(status_code=204)),
            Route("/api/enter", enter, methods=["POST"]),
            Route("/api/state", inside(state)),
            Route("/api/label", inside(label), methods=["POST"]),
            Route("/api/undo", inside(undo), methods=["POST"]),
            Route("/api/summary", inside(summary)),
            Route("/image/{number}", inside(image)),
        ],
        exception_handlers={HTTPException: refused},
    )
    app.router.redirect_slashes = False
    return Guarded(app, port)


async def _values(request: Request) -> dict[str, Any]:
    """Return the object in a request's body; empty if there is none."""
    try:
        value = json.loads(await request.body())
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def serve(app: ASGIApp, server: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until Ctrl-C, which is raised again at the end."""
    with needed_for("vinoreward label", "label"):
        import h11
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        """Closes a connection whose request has not arrived: enough of them block the page."""

        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.deadline = self.loop.call_later(PATIENCE, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            arriving = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
            if arriving and self.deadline is None:
                self.deadline = self.loop.call_later(PATIENCE, self.transport.close)
            elif not arriving and self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                started()

    config = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=2,
        limit_concurrency=100,
    )
    Server(config).run(sockets=[server])
