"""Chat completions of an OpenAI-compatible server, with retries that end in an infrastructure failure, never in a 0."""

import random
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.rollout.prompts import BASH_TOOL

Calls = Literal["native", "text"]
"""Who reads tool calls: the server, which then hands them over apart from the text, or we."""

Message = Mapping[str, Any]

_TRANSIENT = frozenset({408, 409, 425, 429})
_FULL = re.compile(r"context.?length|maximum context|max_model_len|too many tokens|longer than the", re.IGNORECASE)
_KEPT = ("content", "tool_calls", "reasoning_content", "reasoning")
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0


class ContextFullError(Exception):
    """The conversation does not fit the server's context: the agent's doing, as on the desk."""


@dataclass(frozen=True)
class Sampling:
    """How a turn is sampled; tokens are counted by the server."""

    temperature: float = 1.0
    top_p: float = 1.0
    turn_tokens: int = 16_384


@dataclass(frozen=True)
class Endpoint:
    """A server, and how patient we are with it.

    Attributes:
        url: up to and with ``/v1``.
        model: the name under which it serves the policy.
        key: sent as a bearer token where there is one; written nowhere.
        calls: who reads tool calls.
        timeout: seconds of one call.
        retries: after an attempt that failed for a while only.
    """

    url: str
    model: str
    key: str = ""
    calls: Calls = "native"
    timeout: float = 600.0
    retries: int = 6

    def __post_init__(self) -> None:
        """Raises InputError where the address is none."""
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise InputError(f"{self.url} is no address ({error})", "Such as http://127.0.0.1:8000/v1") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise InputError(f"{self.url} is no address of a server", "Such as http://127.0.0.1:8000/v1")


@dataclass(frozen=True)
class Reply:
    """A turn as the server gave it.

    Attributes:
        text: what was said, without calls that the server took out.
        calls: those calls, in OpenAI's form.
        message: the turn as it stands in the conversation from now on.
        finished: whether the policy ended it rather than the limit of tokens.
        prompt_tokens, completion_tokens: by the server's count; ``None`` where it does not count.
    """

    text: str
    calls: tuple[Message, ...]
    message: Message
    finished: bool
    prompt_tokens: int | None
    completion_tokens: int | None


class ChatClient:
    """Asks an endpoint for turns; may be used from several threads. A context manager.

    Attributes:
        retried: how many calls were made again.
    """

    def __init__(self, endpoint: Endpoint, sampling: Sampling) -> None:
        self._endpoint, self._sampling = endpoint, sampling
        headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        # as many connections as there are callers; those of the library's own pool would wait for each other
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        url = httpx.URL(endpoint.url)
        self._address = f"{endpoint.url.rstrip('/')}/chat/completions"
        self._client = httpx.Client(
            headers=headers,
            timeout=httpx.Timeout(endpoint.timeout, connect=10),
            limits=limits,
            trust_env=url.host not in ("localhost", "127.0.0.1", "::1"),  # no proxy to this very machine
        )
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self.retried = 0

    def ask(self, messages: Sequence[Message], seed: int) -> Reply:
        """The next turn of the conversation.

        Raises:
            ContextFullError: it does not fit.
            InfrastructureError: no answer after all retries.
            InputError: the server refuses what is asked of it, for example because it serves no such model.
        """
        request = {
            "model": self._endpoint.model,
            "messages": list(messages),
            "tools": [BASH_TOOL],
            "tool_choice": "auto" if self._endpoint.calls == "native" else "none",
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_tokens": self._sampling.turn_tokens,
            "seed": seed,
        }
        reason, asked = "", 0.0
        for tries in range(self._endpoint.retries + 1):
            if tries:
                self._wait(tries, asked)
            if self._stopped.is_set():
                break
            asked = 0.0
            try:
                response = self._client.post(self._address, json=request)
                if response.status_code == httpx.codes.OK:
                    return _reply(response)
                reason, asked = self._refused(response), _retry_after(response)
            except (httpx.TransportError, _UnreadableError) as error:
                reason = f"{type(error).__name__}: {error}"
            except RuntimeError as error:  # httpx: the client was closed meanwhile
                reason = str(error)
        raise InfrastructureError(
            f"{self._endpoint.url} gave no turn ({' '.join(reason.split())[:200]})",
            "Look at the server, and run the same command again",
            FailureClass.ENDPOINT,
        )

    def stop(self) -> None:
        """Give up all calls, now and later."""
        self._stopped.set()
        self._client.close()

    def _wait(self, tries: int, asked: float) -> None:
        """Before a call is made again: twice as long each time, at random so that callers part, or what was asked."""
        with self._lock:
            self.retried += 1
        seconds = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** (tries - 1)) * random.uniform(0.5, 1.0)
        self._stopped.wait(max(seconds, min(asked, _LONGEST_WAIT)))

    def _refused(self, response: httpx.Response) -> str:
        """Why there is no turn, where asking again may help."""
        said = response.text[:2000]
        if response.status_code in _TRANSIENT or response.status_code >= 500:
            return f"status {response.status_code}: {said}"
        if response.status_code in (400, 413, 422) and _FULL.search(said):
            raise ContextFullError(said)
        hint = "See the server's log"
        if "tool" in said and self._endpoint.calls == "native":
            hint = "Serve it with a parser of tool calls, or have them read here: --calls text"
        raise InputError(
            f"{self._endpoint.url} refuses the request, status {response.status_code}: {' '.join(said.split())[:300]}",
            hint,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class _UnreadableError(Exception):
    """An answer that is none: a proxy's page, for example."""


def _reply(response: httpx.Response) -> Reply:
    try:
        body = response.json()
        choice = body["choices"][0]
        said, usage = choice["message"], body.get("usage") or {}
        text, calls = said.get("content") or "", tuple(said.get("tool_calls") or ())
        finished = choice.get("finish_reason") != "length"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _UnreadableError(f"{type(error).__name__} in {response.text[:100]!r}") from error
    message = {"role": "assistant", **{name: said[name] for name in _KEPT if said.get(name)}}
    message.setdefault("content", "")
    return Reply(text, calls, message, finished, usage.get("prompt_tokens"), usage.get("completion_tokens"))


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks us to wait; dates are left alone."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
