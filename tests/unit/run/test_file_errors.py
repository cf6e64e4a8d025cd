"""What the system says of a file, as a sentence."""

import errno
import os

import pytest

from lakehead.run.file_errors import file_error_message


def error(number: int, path: str | None = "/lake/x") -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_the_disks_fault(number: int) -> None:
    said = file_error_message(error(number))

    assert said == f"The disk of /lake/x is full ({os.strerror(number)}). Make room there, and run it again."


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_folder_that_may_not_be_written_is_named(number: int) -> None:
    said = file_error_message(error(number))

    assert said == (
        f"This user may not write /lake/x ({os.strerror(number)}). Change its permissions, or choose another path."
    )


def test_a_file_where_a_folder_should_be_is_named() -> None:
    said = file_error_message(error(errno.ENOTDIR))

    assert said == "/lake/x cannot be created or opened (Not a directory). Choose another path."


def test_nothing_is_said_of_an_error_of_ours() -> None:
    assert file_error_message(error(errno.EPIPE)) is None
    assert file_error_message(OSError("no number")) is None
