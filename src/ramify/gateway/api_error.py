"""ApiError: what a client is told when a request cannot be answered, as OpenAI's clients read it."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "upstream_error",
    503: "server_error",
    504: "timeout_error",
}
"""Status -> OpenAI's word for such errors; all others are `invalid_request_error`."""


class ApiError(Exception):
    """A request that is not answered. `param` is the field at fault, `code` a short word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> Mapping[str, str]:
        return {} if self.retry_after_s is None else {"Retry-After": str(max(1, round(self.retry_after_s)))}

    def as_dict(self) -> dict[str, Any]:
        return error_body(self.status, self.message, param=self.param, code=self.code)


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body of an error in OpenAI's form."""
    words = message.encode("utf-8", "replace").decode()
    kind = TYPES.get(status, "invalid_request_error")
    return {"error": {"message": words or HTTPStatus(status).phrase, "type": kind, "param": param, "code": code}}


def bad_request(message: str, param: str | None = None, *, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)
