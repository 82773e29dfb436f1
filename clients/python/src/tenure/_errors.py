"""Errors. Each request error says whether the cluster may have applied the request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .states import Loss

if TYPE_CHECKING:
    from .api import Problem


class TenureError(Exception):
    """Base class of all errors of this package, except `ValueError` for invalid arguments."""


class Refused(TenureError):
    """The cluster refused the request: it is certainly not applied."""

    def __init__(self, problem: Problem) -> None:
        """Creates the error of this problem document."""
        super().__init__(problem)
        self.problem = problem
        """The problem document, with all its fields."""

    @property
    def code(self) -> str:
        """The error code of the HTTP API, for example `held`. Later servers can add codes."""
        return self.problem["code"]

    @property
    def holder(self) -> str | None:
        """The current holder, if the code is `held` or `lost` and there is one."""
        return self.problem.get("holder")

    def __str__(self) -> str:
        return f"{self.code}: {self.problem['detail']}"


class Unknown(TenureError):
    """The cluster applied the request, did not apply it, or will apply it later. Sending it again is safe."""

    def __init__(self, why: str, last: Problem | None = None) -> None:
        """Creates the error. `last` is the refusal of a later attempt."""
        super().__init__(why, last)
        self.why = why
        """Why there is no answer."""
        self.last = last
        """The refusal of a later attempt. It does not prove that the earlier attempt was not applied."""

    def __str__(self) -> str:
        later = f"; a later attempt was refused: {self.last['detail']}" if self.last else ""
        return f"the outcome is unknown: {self.why}{later}"


class Unavailable(TenureError):
    """No node could serve the request in time: it is certainly not applied."""

    def __init__(self, why: str) -> None:
        """Creates the error. `why` has the last error of each node."""
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"no node could serve the request: {self.why}"


class ShutDown(TenureError):
    """The lease manager is shut down: the request is certainly not applied, and a retry fails too."""

    def __str__(self) -> str:
        return "the lease manager is shut down"


class LeaseLost(TenureError):
    """The lease ended before the work did. The work was cancelled, or it ended too late."""

    def __init__(self, name: str, token: int, why: Loss) -> None:
        """Creates the error of this grant."""
        super().__init__(name, token, why)
        self.name = name
        """The name of the lease."""
        self.token = token
        """The fencing token of the lost grant; 0 if there was no grant."""
        self.why = why
        """Why the lease was lost."""

    def __str__(self) -> str:
        return f"the lease {self.name!r} was lost: {self.why.explanation}"


def local_refusal(code: str, detail: str) -> Refused:
    """A refusal by this process, without a request."""
    return Refused({"type": f"urn:tenure:problem:{code}", "title": code, "status": 409, "detail": detail, "code": code})
