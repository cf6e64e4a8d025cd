"""Which accepted batch a unit of work is."""

from lakehead.consume.messages import uri_in_store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity


def accepted_unit(identity: BatchIdentity, store_url: str) -> str:
    """Return the unit of an accepted batch of the store at this URL."""
    return uri_in_store(store_url, keys.accepted(identity))


def identity_of_unit(unit: str, store_url: str) -> BatchIdentity | None:
    """Return the accepted batch whose unit this is; None if it is not one of the store at this URL."""
    place, _, rest = unit.rpartition("/agent")
    identity = keys.parse_accepted(f"{keys.ACCEPTED}/agent{rest.replace('%3D', '=')}") if place else None
    return identity if identity is not None and accepted_unit(identity, store_url) == unit else None
