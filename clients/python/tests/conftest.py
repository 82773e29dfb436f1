"""Fixtures."""

from __future__ import annotations

import gc
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from nodes import Cluster
from scripted import ManualClock, ScriptedServer

_VARIABLES = ("ENDPOINTS", "ACCESS_TOKEN", "ACCESS_TOKEN_FILE", "CA", "CERT", "KEY")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of the developer do not count."""
    for name in _VARIABLES:
        monkeypatch.delenv(f"TENURE_{name}", raising=False)


def pytest_collection_finish() -> None:
    """The imported modules are no garbage. Without them, a collection is quick."""
    gc.freeze()


class _Records(logging.Handler):
    """Keeps all records."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(autouse=True)
def _no_error_of_asyncio() -> Iterator[None]:
    """The event loop reports no error, such as `Task exception was never retrieved`.

    The loop finds most of these errors when the garbage is collected.
    """
    records = _Records()
    logger = logging.getLogger("asyncio")
    logger.addHandler(records)
    yield
    gc.collect()
    logger.removeHandler(records)
    assert records.lines == []


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A scripted cluster of one node."""
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def servers() -> AsyncIterator[ScriptedServer]:
    """A scripted cluster of three nodes."""
    async with ScriptedServer(3) as servers:
        yield servers


@pytest.fixture
def clock() -> ManualClock:
    """A clock that only the test moves."""
    return ManualClock()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real node. Each test uses its own names."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.stop()
