"""The process that owns a manager or a client."""

from __future__ import annotations

import os


class Owner:
    """The process that created an object.

    A forked process has a copy of the connections, which both processes would use, and no copy of the threads. So it must
    not use the object.
    """

    def __init__(self, kind: str) -> None:
        """The present process owns an object of this kind."""
        self._kind = kind
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is the process of the object."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises an error in each other process.

        Raises:
            RuntimeError: this is a forked process.
        """
        if not self.is_here:
            raise RuntimeError(f"this {self._kind} belongs to process {self._pid}: create one in the child")
