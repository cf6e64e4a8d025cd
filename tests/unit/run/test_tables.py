"""Ages as they are typed, and a catalog's properties from the command line and the environment."""

from datetime import timedelta

import pytest
import typer

from lakehead.errors import Misconfigured
from lakehead.run.environment import catalog_properties
from lakehead.run.tables import age


@pytest.mark.parametrize(
    ("said", "meant"),
    [("90s", timedelta(seconds=90)), ("5 m", timedelta(minutes=5)), ("12h", timedelta(hours=12)), ("3d", timedelta(3))],
)
def test_an_age_is_a_number_and_a_letter(said: str, meant: timedelta) -> None:
    assert age(said) == meant


@pytest.mark.parametrize("said", ["", "3", "d", "-3d", "3 weeks", "1.5h"])
def test_any_other_age_is_refused(said: str) -> None:
    with pytest.raises(typer.BadParameter):
        age(said)


def test_a_property_may_come_from_a_variable_that_is_set() -> None:
    given = {"type": "rest", "credential": "env:SECRET"}

    assert catalog_properties(given, {"SECRET": "x:y"}) == {"type": "rest", "credential": "x:y"}
    with pytest.raises(Misconfigured, match="credential is to come from the variable SECRET, which is not set"):
        catalog_properties(given, {})


def test_a_warehouse_on_s3_takes_what_was_not_given_from_the_clouds_own_variables() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://there", "AWS_ACCESS_KEY_ID": "k", "AWS_REGION": "r"}

    on_s3 = catalog_properties({"warehouse": "s3://bucket/w", "client.region": "mine"}, environment)
    local = catalog_properties({"warehouse": "file:///w"}, environment)

    assert (on_s3["s3.endpoint"], on_s3["s3.access-key-id"], on_s3["client.region"]) == ("http://there", "k", "mine")
    assert "s3.secret-access-key" not in on_s3
    assert local == {"warehouse": "file:///w"}
