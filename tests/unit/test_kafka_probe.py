"""A broker that ends while it is asked is not taken for one with other settings."""

from __future__ import annotations

import socket
import threading

import pytest

from raygam.adapters.kafka_connection import KafkaConnection
from raygam.adapters.kafka_probe import check_connection
from raygam.memory.errors import Misconfigured, Refused, Retryable


def closing(listener: socket.socket, times: int) -> threading.Thread:
    """Accept and close so often, then be gone."""

    def serve() -> None:
        with listener:
            for _ in range(times):
                listener.accept()[0].close()

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize("security", ["PLAINTEXT", "SSL"])
@pytest.mark.parametrize(("times", "kind"), [(1, Retryable), (2, Refused)])
def test_closing_once_and_being_gone_is_an_outage(times: int, kind: type[Exception], security: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = closing(listener, times)
    with pytest.raises(kind):
        check_connection(KafkaConnection(f"127.0.0.1:{listener.getsockname()[1]}", security=security))
    thread.join()
    assert not thread.is_alive()
    assert issubclass(Refused, Misconfigured)
