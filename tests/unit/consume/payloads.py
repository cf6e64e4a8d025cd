"""Messages as S3, SNS, EventBridge, GCS and Pub/Sub write them."""

import json
from base64 import b64encode
from typing import Any

Json = dict[str, Any]


def s3_record(key: str = "in/a.json", *, event: str = "ObjectCreated:Put", **more: Any) -> Json:
    """One of the `Records` of a notification. More fields are those of the object."""
    created = {"key": key, "size": 7, "eTag": "e1", "sequencer": "0066AA", **more}
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "eu-north-1",
        "eventTime": "2031-05-06T07:08:09.010Z",
        "eventName": event,
        "userIdentity": {"principalId": "AWS:X"},
        "requestParameters": {"sourceIPAddress": "192.0.2.7"},
        "responseElements": {"x-amz-request-id": "R1", "x-amz-id-2": "H1"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "to-lakehead",
            "bucket": {"name": "shop", "ownerIdentity": {"principalId": "P"}, "arn": "arn:aws:s3:::shop"},
            "object": {name: value for name, value in created.items() if value is not None},
        },
    }


def s3(*records: Json) -> Json:
    return {"Records": list(records or (s3_record(),))}


def s3_test_event() -> Json:
    return {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2031-05-06T07:08:09Z", "Bucket": "shop"}


def sns(message: Json | str, kind: str = "Notification") -> Json:
    return {
        "Type": kind,
        "MessageId": "9a0b",
        "TopicArn": "arn:aws:sns:eu-north-1:000000000000:files",
        "Message": message if isinstance(message, str) else json.dumps(message),
        "Timestamp": "2031-05-06T07:08:10Z",
        "Token": "hunter2",
        "SubscribeURL": "https://sns.example/?Action=Confirm&Token=hunter2",
    }


def bridge(kind: str = "Object Created", **more: Any) -> Json:
    created = {"key": "in/a.json", "size": 7, "etag": "e1", "sequencer": "0066AA", **more}
    return {
        "version": "0",
        "id": "6f1c",
        "detail-type": kind,
        "source": "aws.s3",
        "account": "000000000000",
        "time": "2031-05-06T07:08:09Z",
        "region": "eu-north-1",
        "resources": ["arn:aws:s3:::shop"],
        "detail": {"version": "0", "bucket": {"name": "shop"}, "object": created, "reason": "PutObject"},
    }


def gcs(**more: Any) -> Json:
    return {
        "kind": "storage#object",
        "name": "in/a.json",
        "bucket": "shop",
        "generation": "1700",
        "metageneration": "1",
        "size": "7",
        "md5Hash": "q1w2",
        "etag": "CKy=",
        "timeCreated": "2031-05-06T07:08:09Z",
        **more,
    }


def gcs_attributes(event: str = "OBJECT_FINALIZE") -> dict[str, str]:
    return {
        "eventType": event,
        "payloadFormat": "JSON_API_V1",
        "bucketId": "shop",
        "objectId": "in/a.json",
        "objectGeneration": "1700",
    }


def push(data: Json | None, attributes: dict[str, str]) -> Json:
    message: Json = {"attributes": attributes, "messageId": "55"}
    if data is not None:
        message["data"] = b64encode(json.dumps(data).encode()).decode()
    return {"message": message, "subscription": "projects/p/subscriptions/s"}
