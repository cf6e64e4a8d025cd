"""The error numbers of MySQL and MariaDB by meaning: the one table, for the state and for sources."""

DEADLOCK = frozenset({1213, 1020})
"""Rolled back because of another transaction; 1020: a record has changed since it was read."""

LOCK_TIMEOUT = frozenset({1205})
STATEMENT_TIMEOUT = frozenset({1969, 3024})
"""Of MariaDB, and of MySQL."""

ACCESS_DENIED = frozenset({1044, 1045, 1698})
"""The user may not use the database, or has given a wrong password."""

NO_PRIVILEGE = frozenset({1142, 1143, 1227, 1370})
NO_DATABASE = frozenset({1049})
DISK_FULL = frozenset({1021, 1114})
READ_ONLY = frozenset({1290, 1836})
"""A replica, or a server that is being shut down."""

UNREACHABLE = frozenset({0, 1040, 1053, 1077, 1152, 1159, 1161, 1927, *range(2000, 2030)})
"""Too many connections, a shutdown, a lost connection; 0 and from 2000 on are the client's own errors."""
