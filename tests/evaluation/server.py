"""A small OpenAI-compatible server, over real HTTP, whose policy is a function of the request."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from leonardo.rollout.prompts import SUBMIT_COMMAND

Policy = Callable[[dict[str, Any]], "Answer"]


@dataclass
class Answer:
    """What the server says: a turn, or where ``status`` is not 200 an error whose body is ``text``; 0 hangs up."""

    text: str = ""
    command: str | None = None
    status: int = 200
    finish: str = "stop"
    usage: dict[str, int] | None = None
    message: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


class Server(ThreadingHTTPServer):
    """Keeps the requests that came."""

    daemon_threads = True

    def __init__(self, policy: Policy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.policy, self.requests, self.keys = policy, [], []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(request)
        self.server.keys.append(self.headers.get("authorization"))
        answer = self.server.policy(request)
        if not answer.status:
            self.close_connection = True
            return
        body = answer.text if answer.status != 200 else json.dumps(_completion(answer))
        self.send_response(answer.status)
        for name, value in {"content-length": str(len(body.encode())), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def _completion(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text} | answer.message
    if answer.command is not None:
        arguments = json.dumps({"command": answer.command})
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}]
    choice = {"index": 0, "message": message, "finish_reason": answer.finish}
    return {"choices": [choice]} | ({"usage": answer.usage} if answer.usage else {})


@contextmanager
def serving(policy: Policy) -> Iterator[Server]:
    """The server, for as long as the block lasts."""
    server = Server(policy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def turn_of(request: dict[str, Any]) -> int:
    """Which turn is asked for, from 0."""
    return sum(message["role"] == "assistant" for message in request["messages"])


def solver(request: dict[str, Any]) -> Answer:
    """Does what the instruction says after ``Run``, then submits."""
    if turn_of(request):
        return Answer("Done.", SUBMIT_COMMAND)
    return Answer("I do it.", request["messages"][1]["content"].removeprefix("Run "))


def idler(request: dict[str, Any]) -> Answer:
    """Submits at once."""
    return Answer("", SUBMIT_COMMAND)
