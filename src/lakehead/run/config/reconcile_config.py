"""The configuration of the reconciler."""

from typing import Annotated

from pydantic import Field, StrictInt

from lakehead.maintain.reconcile_settings import ReconcileSettings, VerifyMode
from lakehead.run.config.base import ConfigModel, NonEmptyText

Count = Annotated[StrictInt, Field(ge=1, le=1000)]
Hours = Annotated[float, Field(gt=0, le=24 * 366)]
Seconds = Annotated[float, Field(gt=0, le=3600)]

DEFAULTS = ReconcileSettings()


class ReconcileEventsConfig(ConfigModel):
    """An SQS queue of notifications of S3 that objects of `accepted/v1/` were created. Needs `lakehead[sqs]`."""

    queue_url: NonEmptyText = Field(description="The URL of the queue, or its name in the account of the credentials.")
    region: NonEmptyText | None = Field(None, description="The region. Default: that of the URL, or the environment's.")
    endpoint: NonEmptyText | None = Field(
        None, description="The address of a server other than AWS's own, such as http://127.0.0.1:4566. Default: none."
    )


class ReconcileConfig(ConfigModel):
    """The reconciler of the gateway's authority: `lakehead reconcile CONFIG`."""

    reconciler_id: Annotated[NonEmptyText, Field(max_length=1024)] | None = Field(
        None, description="The reconciler's own name in what it stores. Default: the name of the machine."
    )
    verify: VerifyMode = Field(
        DEFAULTS.verify,
        description="How frames are checked. hash: each is read, and its SHA-256 compared. size: only its size is.",
    )
    look_back_hours: Hours = Field(
        DEFAULTS.look_back_seconds / 3600,
        description="How far before the checkpoint hours are listed: for lost events, skewed clocks and retries.",
    )
    grace_seconds: Annotated[float, Field(ge=0, le=3600)] = Field(
        DEFAULTS.grace_seconds,
        description="Batches that were accepted less than this ago are left to their gateway, which queues them.",
    )
    pass_seconds: Seconds = Field(
        DEFAULTS.pass_seconds, description="The pause between two passes over the newest hours."
    )
    cold_scan_hours: Hours = Field(
        DEFAULTS.cold_scan_seconds / 3600, description="The time between two scans of everything that was accepted."
    )
    at_once: Count = Field(
        DEFAULTS.at_once, description="Batches that are looked at concurrently, each with up to 8 MiB in memory."
    )
    events: ReconcileEventsConfig | None = Field(
        None, description="Notifications of new identity manifests, which are looked at at once. Default: none."
    )

    def settings(self) -> ReconcileSettings:
        """Return the settings of the reconciler."""
        return ReconcileSettings(
            verify=self.verify,
            look_back_seconds=self.look_back_hours * 3600,
            grace_seconds=self.grace_seconds,
            pass_seconds=self.pass_seconds,
            cold_scan_seconds=self.cold_scan_hours * 3600,
            at_once=self.at_once,
        )
