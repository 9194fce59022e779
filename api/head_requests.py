"""Answers HEAD at every address that answers GET: the same status and headers, without a body."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Head:
    """Middleware that has a HEAD request answered as GET, and ends the answer at its first byte.

    FastAPI refuses HEAD with 405. A stream of events would otherwise continue for ever, unread.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
            elif not answered.is_set():
                answered.set()
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        answer = asyncio.ensure_future(self._app({**scope, "method": "GET"}, receive, without_body))
        enough = asyncio.ensure_future(answered.wait())
        try:
            await asyncio.wait((answer, enough), return_when=asyncio.FIRST_COMPLETED)
        finally:
            enough.cancel()
            if answered.is_set():
                answer.cancel()
                with suppress(asyncio.CancelledError):
                    await answer
        if not answered.is_set():
            await answer  # raises what the application raised before it answered
