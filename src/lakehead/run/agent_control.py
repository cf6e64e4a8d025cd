"""What commands ask of an agent that runs: over its Unix socket, or its port of loopback."""

from dataclasses import dataclass
from typing import Any

import httpx

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.run.config.agent_config import AgentListenerConfig

ANSWER_SECONDS = 30.0


class NoAgentRuns(Unavailable):
    """Start the agent first: nothing answers where it would listen."""


class AgentRefused(LakeheadError):
    """The agent did not do what it was asked for. The message says why."""


@dataclass(frozen=True, slots=True)
class AgentControl:
    """The control routes of a running agent."""

    listener: AgentListenerConfig
    agent_id: str
    """The agent that is meant. Another one that listens there is asked for nothing: what it flushed or dropped would be
    taken for this one's."""

    def status(self) -> dict[str, Any]:
        """Return how the agent is. Raises `NoAgentRuns`, also if another agent listens there, and `AgentRefused`."""
        told = self._ask("GET", "/v1/status")
        who = told.get("agent_id")
        if (
            not isinstance(who, str)
            or not isinstance(told.get("spool"), dict)
            or not isinstance(told.get("parked"), list)
        ):
            raise AgentRefused(f"What listens at {self._where} did not answer as an agent does.")
        if who != self.agent_id:
            raise NoAgentRuns(
                f"The agent that listens at {self._where} is {who!r}, and not {self.agent_id!r}. Give each a port or "
                "socket of its own, and start this one: lakehead agent CONFIG"
            )
        return told

    def parked(self) -> list[dict[str, Any]]:
        """Return the parked batches. Raises what `status` does."""
        found: list[dict[str, Any]] = self.status()["parked"]
        return found

    def drop(self, number: int) -> dict[str, Any]:
        """Drop a parked batch for good: the one that has this number now, and no other. Raises `AgentRefused`."""
        self.status()
        shown = self._ask("GET", f"/v1/parked/{number}")
        return self._ask("DELETE", f"/v1/parked/{number}", {"sha256": shown["frame_sha256"]})

    def retry(self) -> list[dict[str, Any]]:
        """Let the agent offer all parked batches again now, and return them. Raises what `status` does."""
        self.status()
        found: list[dict[str, Any]] = self._ask("POST", "/v1/parked/retry")["parked"]
        return found

    def flush(self, seconds: float) -> dict[str, Any]:
        """Wait until all that was given is accepted or parked, at most so long, and return what became of it."""
        self.status()
        return self._ask("POST", "/v1/flush", {"timeout_seconds": f"{seconds:g}"}, wait=seconds, told=(200, 409, 503))

    @property
    def _where(self) -> str:
        socket = self.listener.unix_socket
        return socket if socket is not None else f"{self.listener.host}:{self.listener.port}"

    def _ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        *,
        wait: float = 0,
        told: tuple[int, ...] = (200,),
    ) -> dict[str, Any]:
        socket, port, host = self.listener.unix_socket, self.listener.port, self.listener.host
        if socket is None and not port:
            raise Misconfigured("The agent listens on any free port. Set a port or a unix_socket to reach it.")
        try:
            with httpx.Client(
                transport=httpx.HTTPTransport(uds=socket),
                base_url="http://localhost" if socket is not None else f"http://{_in_url(host)}:{port}",
                timeout=ANSWER_SECONDS + wait,
                trust_env=False,
            ) as http:
                answer = http.request(method, path, params=query)
                body = answer.json()
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NoAgentRuns(f"No agent answers at {self._where} ({error}). Start it: lakehead agent CONFIG") from None
        except (httpx.InvalidURL, UnicodeError) as error:
            raise Misconfigured(
                f"agent.listener.host is {host!r}, which is no address ({error}). Correct it."
            ) from None
        except (httpx.TransportError, ValueError) as error:
            raise AgentRefused(f"What listens there did not answer as an agent does ({error!r}).") from None
        if not isinstance(body, dict) or (answer.status_code not in told or "error" in body):
            error_told = body.get("error") if isinstance(body, dict) else None
            said = error_told.get("message", "") if isinstance(error_told, dict) else ""
            raise AgentRefused(f"The agent answered {answer.status_code}: {said or 'nothing more'}")
        return body


def _in_url(host: str) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - what to connect to, not to listen at
    return f"[{host}]" if ":" in host else host
