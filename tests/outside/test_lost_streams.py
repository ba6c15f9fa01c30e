"""Streams that are lost while an agent waits for messages are made anew without a warning."""

from __future__ import annotations

import signal
from pathlib import Path

from support.crawls import loopback_settings, start
from support.names import Setting
from support.redis_servers import RedisServer
from support.running_crawl import until


def test_deleted_streams(tmp_path: Path) -> None:
    """Some releases of Redis tell who waits "UNBLOCKED the stream key no longer exists".

    The server of the tests is told to say UNBLOCKED, since its release may say nothing.
    """
    log = tmp_path / "log"
    with RedisServer(tmp_path / "redis") as server, server.client() as client:
        settings = loopback_settings(**{
            "JOBDIR": str(tmp_path / "job"), Setting.CLUSTER: "peers", Setting.CRAWL_NAME: "lost",
            Setting.AGENT_NAME: "a", Setting.REDIS_URL: server.url, Setting.IDLE: "wait",
        })  # fmt: skip
        process = start("support.spiders.Bulk", settings, tmp_path)

        def waiting() -> bool:
            return client.info("clients")["blocked_clients"] >= 2 or process.poll() is not None

        try:
            until(waiting)
            streams = client.keys("*:inbox:*") + client.keys("*:receipts:*")
            assert len(streams) == 2
            blocked = [each for each in client.client_list() if "b" in each["flags"]]
            pipe = client.pipeline().delete(*streams)
            for each in blocked:
                pipe.client_unblock(each["id"], error=True)
            pipe.execute()
            until(lambda: client.exists(*streams) == 2 or process.poll() is not None)
            until(waiting)
            assert process.poll() is None, log.read_text()
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        finally:
            if process.poll() is None:
                process.kill()
    troubles = [line for line in log.read_text().splitlines() if "messages through Redis" in line]
    assert not troubles
