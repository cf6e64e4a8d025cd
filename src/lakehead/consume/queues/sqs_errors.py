"""What errors of SQS and of boto3 mean for a caller: try again later, or correct the settings."""

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,  # noqa: A004 - of botocore, for timeouts of connecting and more
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ResponseStreamingError,
)

from lakehead.errors import LakeheadError, Misconfigured, Unavailable

PERMISSIONS = (
    "sqs:GetQueueUrl, sqs:GetQueueAttributes, sqs:ReceiveMessage, sqs:ChangeMessageVisibility and sqs:DeleteMessage"
)

_TRY_LATER = {
    "InternalError",
    "InternalFailure",
    "KmsThrottled",
    "OverLimit",  # 120,000 messages in flight
    "RequestThrottled",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}
_NO_QUEUE = {"NonExistentQueue", "QueueDoesNotExist", "QueueDeletedRecently", "InvalidAddress"}
_NO_ACCESS = {"AccessDenied", "AccessDeniedException", "KmsAccessDenied", "UnauthorizedOperation"}
_BAD_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}


def explained(error: BotoCoreError | ClientError, queue: str) -> LakeheadError:
    """Return the error to raise for one of boto3."""
    if isinstance(error, ClientError):
        return _explained_answer(error, queue)
    match error:
        case NoCredentialsError() | PartialCredentialsError():
            return Misconfigured(
                f"There are no credentials for the queue {queue} ({error}). Give a role to this machine, or set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
                fault="credentials",
            )
        case NoRegionError():
            return Misconfigured(
                f"There is no region for the queue {queue}. Set its region, or give its whole URL.", fault="region"
            )
        case ConnectionError() | HTTPClientError() | IncompleteReadError() | ResponseStreamingError():
            return Unavailable(f"The queue {queue} does not respond ({error}). Try again later.", fault="connection")
        case _:
            return Misconfigured(f"The queue {queue} cannot be used ({error}). Correct its settings.", fault="client")


def _explained_answer(error: ClientError, queue: str) -> LakeheadError:
    code = str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]
    said = error.response.get("Error", {}).get("Message", "") or code
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500 or status == 429 or code in _TRY_LATER:
        return Unavailable(f"The queue {queue} does not serve now ({said}). Try again later.", fault=code)
    if code in _NO_QUEUE:
        return Misconfigured(
            f"The queue {queue} does not exist ({said}). Check its name or URL, the region and the account.", fault=code
        )
    if code in _NO_ACCESS or (status == 403 and code not in _BAD_CREDENTIALS):
        return Misconfigured(
            f"The queue {queue} refuses access ({said}). Allow these credentials {PERMISSIONS}; and sqs:SendMessage, "
            "if dead letters are to be replayed.",
            fault=code,
        )
    if code in _BAD_CREDENTIALS:
        return Misconfigured(
            f"The queue {queue} does not accept these credentials ({said}). Renew or correct them.", fault=code
        )
    return Misconfigured(f"The queue {queue} refused a request ({code}: {said}). Correct its settings.", fault=code)
