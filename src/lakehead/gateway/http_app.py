"""What the applications of both listeners share: one form of errors, and nothing that a framework adds by itself."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.gateway.request_body import ClientGone

LOG = logging.getLogger(__name__)
_ROUTING = {404: ErrorCode.NOT_FOUND, 405: ErrorCode.METHOD_NOT_ALLOWED}


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: ErrorCode
    message: str


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that a route answers, for its OpenAPI document."""
    return {status: {"model": ErrorBody} for status in statuses}


def new_app(title: str, *, listener: str, metrics: GatewayMetrics) -> FastAPI:
    """Return an application without routes, whose errors all have the gateway's form."""
    app = FastAPI(title=title, version="1", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)

    def refused(request: Request, refusal: Refusal) -> Response:
        request.state.is_counted = True
        response = refusal.response(close=may_have_body(request))
        metrics.answered(listener, response.status_code, refusal.code)
        return response

    async def on_client_gone(request: Request, error: Exception) -> Response:
        del request, error
        return Response(status_code=400)  # which goes nowhere

    async def on_refusal(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)  # noqa: S101 - for the type checker
        return refused(request, error)

    async def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - for the type checker
        code = _ROUTING.get(error.status_code, ErrorCode.BAD_REQUEST)
        headers = error.headers
        return refused(
            request, Refusal(code, f"{request.method} {request.url.path[:200]}: {error.detail}.", headers=headers)
        )

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - for the type checker
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        return refused(request, Refusal(ErrorCode.BAD_REQUEST, f"The request is not valid: {problems[:1000]}."))

    async def on_failure(request: Request, error: Exception) -> Response:
        LOG.error("%s %s failed for a reason that is not expected.", request.method, request.url.path, exc_info=error)
        return refused(request, Refusal(ErrorCode.INTERNAL_ERROR, "The gateway failed. Try again later."))

    app.add_exception_handler(Refusal, on_refusal)
    app.add_exception_handler(ClientGone, on_client_gone)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(Exception, on_failure)
    return app


class CountedAnswers:
    """Counts answers but for errors of the gateway's form, which are counted with their code."""

    def __init__(self, app: ASGIApp, *, listener: str, metrics: GatewayMetrics) -> None:
        self._app = app
        self._listener = listener
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count its answer."""
        state = scope.setdefault("state", {})

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and not state.get("is_counted"):
                self._metrics.answered(self._listener, message["status"])
            await send(message)

        await self._app(scope, receive, counted)


def may_have_body(request: Request) -> bool:
    """Whether a body follows the head of the request, which may be unread."""
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
