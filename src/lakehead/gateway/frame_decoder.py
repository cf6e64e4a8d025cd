"""Decoding uploaded frames: small ones at once, larger ones on threads, so that other requests are served meanwhile."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from lakehead.accept.acceptance import Submission
from lakehead.gateway.settings import IngestSettings
from lakehead.wire.frame import decode_frame, payload_bytes_told
from lakehead.wire.frame_limits import FrameLimits


class FrameDecoder:
    """Decodes and hashes frames within a gateway's limits. Its threads end with `close`."""

    def __init__(self, settings: IngestSettings) -> None:
        self._limits = settings.frame_limits
        self._inline_bytes = settings.inline_bytes
        self._threads = ThreadPoolExecutor(settings.decode_threads, thread_name_prefix="lakehead-decode")

    async def decode(self, body: bytes) -> Submission:
        """Check a frame, and hash it. Raises `BadFrame`, `NewerFormat` and `TooLarge`.

        Requests wait here while all threads are busy; how many can, the gateway's admission bounds.
        """
        work = max(len(body), payload_bytes_told(body))  # bytes to look at
        if work <= self._inline_bytes:
            return submission_of(body, self._limits)
        return await asyncio.get_running_loop().run_in_executor(self._threads, submission_of, body, self._limits)

    def close(self) -> None:
        """End the threads when they have done what they were given."""
        self._threads.shutdown(wait=False)


def submission_of(body: bytes, limits: FrameLimits) -> Submission:
    """Decode and hash a frame. Its records are not kept: acceptance needs the bytes as they came."""
    return Submission.of(body, decode_frame(body, limits))
