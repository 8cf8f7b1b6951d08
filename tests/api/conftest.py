"""The API over real HTTP on loopback, with broker and worker played in this process."""

import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from tests.thin import Desk


@pytest.fixture
def desk(empty_tables: None, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Broker and worker in this process."""
    return Desk(monkeypatch)


@pytest.fixture(scope="module")
def address(database: str) -> Iterator[str]:
    """Base URL of this module's running API, lifespan included."""
    from app.main import create_app

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(), log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def client(desk: Desk, address: str) -> Iterator[httpx.Client]:
    """A caller on this machine."""
    with httpx.Client(base_url=address, timeout=60) as http:
        http.get("/healthz")
        yield http


@pytest.fixture
def stranger(desk: Desk, address: str) -> Iterator[httpx.Client]:
    """A caller from another machine, behind a proxy on this one."""
    with httpx.Client(base_url=address, timeout=60, headers={"x-forwarded-for": "203.0.113.7"}) as http:
        yield http
