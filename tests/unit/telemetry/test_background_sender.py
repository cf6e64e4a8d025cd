"""Messages to a receiver that is away, slow or failing: tried a few times, counted, and nobody waits."""

import threading

from lakehead.telemetry.background_sender import PAUSES, BackgroundSender, NotSent


class Receiver:
    """Takes messages, after so many failures, and only while its gate is open."""

    def __init__(self, failures: int = 0, *, try_again: bool = True) -> None:
        self.failures = failures
        self.try_again = try_again
        self.asked: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, message: bytes) -> None:
        self.gate.wait(60)
        self.asked.append(message)
        if self.failures:
            self.failures -= 1
            raise NotSent("it answered 500", try_again=self.try_again)


def test_a_message_is_tried_again_after_a_pause() -> None:
    receiver, pauses = Receiver(failures=2), list[float]()
    sender = BackgroundSender(receiver, "it", pause=lambda _, seconds: pauses.append(seconds))
    sender.put(b"a")
    sender._queue.flush(60)

    assert (receiver.asked, sender.sent, sender.lost) == ([b"a"] * 3, 1, None)
    assert pauses == list(PAUSES)
    sender.close(60)


def test_a_message_is_given_up_and_the_next_is_tried_once_until_one_arrives() -> None:
    receiver = Receiver(failures=4)
    sender = BackgroundSender(receiver, "it", pause=lambda *_: None)
    for message in (b"a", b"b", b"c", b"d"):
        sender.put(message)
    sender.close(60)

    assert receiver.asked == [b"a", b"a", b"a", b"b", b"c", b"d"]
    assert sender.lost is not None
    assert (sender.sent, sender.lost.count, sender.lost.reason) == (2, 2, "it answered 500")


def test_a_refusal_for_good_is_not_tried_again() -> None:
    receiver = Receiver(failures=1, try_again=False)
    sender = BackgroundSender(receiver, "it", pause=lambda *_: None)
    sender.put(b"a")
    sender.close(60)

    assert receiver.asked == [b"a"]


def test_nobody_waits_for_a_slow_receiver_and_the_oldest_messages_are_dropped() -> None:
    receiver = Receiver()
    receiver.gate.clear()
    sender = BackgroundSender(receiver, "it", capacity=2)
    for number in range(10):
        sender.put(bytes([number]))  # returns, although nothing is delivered
    assert receiver.asked == []
    sender.close(0)
    assert sender.lost is not None
    assert sender.lost.count >= 10 - 1
    receiver.gate.set()
