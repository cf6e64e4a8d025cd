"""`lakehead doctor`: whether what Lakehead stands on works, and what to do where it does not."""

import asyncio
from typing import Annotated

import typer

from lakehead.ids import RandomIds
from lakehead.run.environment import store_settings
from lakehead.storage.opening import open_store
from lakehead.storage.probe import probe


def doctor(
    store: Annotated[
        str,
        typer.Option(metavar="URL", help="The store to check: file:///folder, memory://, s3://…, gs://… or az://…"),
    ],
) -> None:
    """Check that the store can be reached and honours the preconditions that Lakehead relies on.

    It writes two small objects below _probe/ and deletes them again. Credentials, endpoint and region come from the
    usual variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION,
    GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY.

    Example: lakehead doctor --store file:///tmp/lake
    """
    asyncio.run(probe(open_store(store, store_settings(store)), ids=RandomIds()))
    typer.echo(f"store ok: {store} creates only what is absent and replaces only the version named, writers racing")
