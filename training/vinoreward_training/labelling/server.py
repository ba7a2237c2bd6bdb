"""The page's server: this machine only, one browser, images by number.

Every request must name this machine as its host; every other than for the page's own three files
needs the cookie, which the one-time token of the printed address is exchanged for; every POST must
come from the page itself. Each answer forbids the browser whatever the page does not need.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from vinoreward.errors import DatasetError, RunFolderError, needed_for
from vinoreward_training.labelling.labels import Answer
from vinoreward_training.labelling.session import OutdatedError, Session

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
MAX_BODY = 4096
"""Bytes of a request's body; a label has a hundred."""
PAGE = {"": "index.html", "page.js": "page.js", "page.css": "page.css"}
"""Path to the file of the page."""
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


def listening() -> socket.socket:
    """Return a socket at any free port of this machine's own address."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.bind((HOST, 0))
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


class _Token(BaseModel, strict=True):
    token: str


class _Label(BaseModel, strict=True):
    image: int
    label: Answer
    seconds: Annotated[float, Field(ge=0, lt=1e9)]


class _Undo(BaseModel, strict=True):
    done: int


def _refusal(request: Request, port: int) -> tuple[int, str] | None:
    """Return status and reason for other hosts and origins, None for the page's own requests."""
    hosts, method = request.headers.getlist("host"), request.method
    if hosts not in ([f"{HOST}:{port}"], [f"localhost:{port}"]):
        return 421, "This is no page for that host."
    if method in ("GET", "HEAD"):
        return None
    if method != "POST":
        return 405, "The page does not ask that."
    if request.headers.getlist("origin") != [f"http://{hosts[0]}"]:
        return 403, "Only the page itself may ask that."
    if request.headers.getlist("content-type") != ["application/json"]:
        return 415, "Expected JSON."
    return None


async def _body(request: Request) -> bytes:
    """Return a request's body; HTTPException if it is too large."""
    from starlette.exceptions import HTTPException

    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise HTTPException(413, f"The body is larger than {MAX_BODY} bytes.")
    return body


def application(session: Session, door: Door, port: int, following: Callable[[], str]) -> ASGIApp:
    """Return the ASGI application; ``following`` says which command comes next."""
    with needed_for("vinoreward label", "label"):
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import FileResponse, JSONResponse
        from starlette.responses import Response as Plain
        from starlette.routing import Route

    def asset(request: Request) -> Response:
        name = PAGE[request.url.path.lstrip("/")]
        return FileResponse(Path(__file__).parent / "page" / name)

    async def enter(request: Request) -> Response:
        key = door.enter(_Token.model_validate_json(await _body(request)).token)
        if key is None:
            raise HTTPException(
                403,
                "This address was used before, or is not complete. Stop vinoreward label with "
                "Ctrl-C and start it again: it goes on where you were.",
            )
        response = JSONResponse({})
        response.set_cookie(door.cookie, key, path="/", httponly=True, samesite="strict")
        return response

    def inside(answer: Callable[[Request, bytes], Response]) -> Callable[..., Any]:
        """Return an endpoint for those with the cookie; it does not block others."""

        async def endpoint(request: Request) -> Response:
            if not door.is_open(request.cookies.get(door.cookie)):
                raise HTTPException(401, "Open the address that vinoreward label printed.")
            return await run_in_threadpool(answer, request, await _body(request))

        return endpoint

    def state(request: Request, body: bytes) -> Response:
        return JSONResponse(session.state())

    def label(request: Request, body: bytes) -> Response:
        said = _Label.model_validate_json(body)
        session.answer(said.image, said.label, said.seconds)
        return JSONResponse(session.state())

    def undo(request: Request, body: bytes) -> Response:
        session.undo(_Undo.model_validate_json(body).done)
        return JSONResponse(session.state())

    def summary(request: Request, body: bytes) -> Response:
        return JSONResponse({**session.summary(), "next": following()})

    def image(request: Request, body: bytes) -> Response:
        number = request.path_params["number"]
        # Python refuses to read thousands of digits.
        data = session.png(int(number)) if number.isdecimal() and len(number) < 10 else None
        if data is None:
            raise HTTPException(404, "There is no such image now.")
        return Plain(data, media_type="image/png")

    def refused(status: int) -> Callable[[Request, Exception], Response]:
        def respond(request: Request, error: Exception) -> Response:
            more = {"state": session.state()} if isinstance(error, OutdatedError) else {}
            if isinstance(error, HTTPException):
                return JSONResponse({"error": error.detail}, error.status_code)
            why = "Expected other values." if isinstance(error, ValidationError) else str(error)
            return JSONResponse({"error": why, **more}, status)

        return respond

    app = Starlette(
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
        exception_handlers={
            HTTPException: refused(404),
            ValidationError: refused(400),
            OutdatedError: refused(409),
            DatasetError: refused(422),
            RunFolderError: refused(507),
            ClientDisconnect: refused(400),
        },
    )
    app.router.redirect_slashes = False

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse other hosts and origins before anything else handles a request."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        refusal = _refusal(Request(scope), port)
        refuse = refusal and JSONResponse({"error": refusal[1]}, refusal[0])
        await (refuse or app)(scope, receive, answer)

    return guarded


def serve(app: ASGIApp, server: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until Ctrl-C, which is raised again at the end."""
    with needed_for("vinoreward label", "label"):
        import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                started()

    config = uvicorn.Config(
        app,
        http="h11",
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
