"""What our sessions on PostgreSQL are told, whatever a role or a database has set for all of its sessions."""

_NO_TIMEOUTS = """
SELECT set_config(name, '0', {local}) FROM pg_settings WHERE name IN
('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')
"""


def no_timeouts(*, local: bool) -> str:
    """A statement after which nothing ends the session, or with `local` the transaction, for lasting long: a snapshot
    is held and a table is read as long as it takes. Settings that the server's version lacks are left out."""
    return _NO_TIMEOUTS.format(local=str(local).lower()).strip().replace("\n", " ")
