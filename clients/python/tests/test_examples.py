"""The examples run against a real node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

import nightly
import web
from nodes import Cluster
from tenure import LeaseManager


async def test_nightly_job_runs_once_at_a_time(cluster: Cluster, tmp_path: Path) -> None:
    endpoints, report = ",".join(cluster.urls), tmp_path / "report.txt"
    assert await nightly.run(report, endpoints) == "done"
    assert report.read_text().count("fenced by") == nightly.PARTS
    async with LeaseManager(cluster.urls) as manager, manager.lease("nightly-report", ttl=10):
        assert (await nightly.run(report, endpoints)).startswith("not started: held")


async def ask(app: FastAPI) -> dict[str, Any]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
        answer: dict[str, Any] = (await client.get("/leader")).json()
        return answer


async def test_web_replicas_have_one_leader(cluster: Cluster) -> None:
    endpoints = ",".join(cluster.urls)
    first, second = web.create_app(endpoints, "first:8000"), web.create_app(endpoints, "second:8000")
    async with second.router.lifespan_context(second):
        while not (await ask(second))["is_me"]:
            await asyncio.sleep(0.01)
        async with first.router.lifespan_context(first):
            answers = [await ask(app) for app in (first, second)]
            assert answers == [{"leader": "second:8000", "is_me": False}, {"leader": "second:8000", "is_me": True}]
        assert second.state.replica.rounds > 0
    async with first.router.lifespan_context(first):
        while not (await ask(first))["is_me"]:
            await asyncio.sleep(0.01)
        assert (await ask(first))["leader"] == "first:8000"
