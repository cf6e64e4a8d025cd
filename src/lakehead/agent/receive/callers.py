"""Who may call: programs of this machine, and no web page that a browser shows.

A page of any site can make a browser send requests to this machine. They carry the page's `Origin`, or, if the page's
own name was made to point to this machine, that name as their `Host`.
"""

from collections.abc import Collection
from ipaddress import ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

from lakehead.agent.receive.refusals import ErrorCode, Refusal

_SHOWN = 100


def check_caller(scope: Scope, headers: Headers, *, hosts: Collection[str], origins: Collection[str]) -> None:
    """Raise `Refusal` for a request that calls this machine by a foreign name, or comes from a foreign web page.

    The name is not looked at if the request comes through the Unix socket, which browsers cannot use.
    """
    for origin in headers.getlist("origin"):
        if origin not in origins:
            raise Refusal(
                ErrorCode.FOREIGN_ORIGIN,
                f"Web pages of {origin[:_SHOWN]!r} may not send to this agent. If they should, set it in `origins`.",
            )
    if scope.get("client") is None:
        return
    names = headers.getlist("host")
    server = scope.get("server")  # the address that was connected to: no page's name is an address
    known = {each.lower() for each in (*hosts, *(server[:1] if server else ()))}
    if len(names) != 1 or not ((name := host_name(names[0])) and (name in known or is_loopback(name))):
        raise Refusal(
            ErrorCode.FOREIGN_HOST,
            f"The agent is not known by the name {', '.join(names)[:_SHOWN]!r}. Call it by a name of loopback such as "
            "localhost, or set the name in `hosts`.",
        )


def host_name(host: str) -> str:
    """Return the name or address in a `Host` header, without the port, in lower case; empty if it is none."""
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, "0"
    if not (port.isascii() and port.isdigit()):
        return ""
    return name.strip("[]").rstrip(".").lower() if name.startswith("[") == name.endswith("]") else ""


def is_loopback(name: str) -> bool:
    """Whether a name or address is one of loopback."""
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
