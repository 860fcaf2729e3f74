"""Messages between processes arrive whole and equal, or not at all."""

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from fusioncc.tuning.measuring import Job
from fusioncc.tuning.messages import Build, FromBench, Open, Refused, Runs, Sample, ToBench, Try
from fusioncc.tuning.pipes import LENGTH, MAX_FRAME, read, write
from tests.codegen.golden_cases import golden
from tests.tuning.entries import DEVICE

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Where to read, and where to write."""
    out, into = os.pipe()
    with os.fdopen(out, "rb", 0), os.fdopen(into, "wb", 0):
        yield out, into


@pytest.mark.parametrize("name", golden())
def test_every_group_and_schedule_arrives_as_it_was(name: str, pipe: Pipe) -> None:
    group, schedule, tier = golden()[name]
    out, into = pipe
    job = Job(group, tier, "inductor")
    for message in (Open(job, DEVICE), Try(3, schedule), Try(-1, None), Sample(2)):
        write(into, message)
        assert read(out, ToBench, 1.0) == message
    write(into, Build(job, schedule, DEVICE))
    assert read(out, Build, 1.0) == Build(job, schedule, DEVICE)


def test_answers(pipe: Pipe) -> None:
    out, into = pipe
    for message in (Runs(None, 2.5), Refused("wrong", "out: \n é")):
        write(into, message)
        assert read(out, FromBench, 1.0) == message


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\1",
        LENGTH.pack(10) + b"{}",
        LENGTH.pack(MAX_FRAME + 1) + b"{}",
        LENGTH.pack(2) + b"{}",
        LENGTH.pack(2) + b"\xff\xff",
        LENGTH.pack(30) + b'{"type":"Refused","kind":"no"}',
    ],
)
def test_what_is_no_message_is_the_end(sent: bytes, pipe: Pipe) -> None:
    out, into = pipe
    os.write(into, sent)
    os.dup2(os.open(os.devnull, os.O_WRONLY), into)  # which closes it
    with pytest.raises(EOFError):
        read(out, FromBench, 1.0)


def test_half_a_message_is_waited_for_and_not_for_ever(pipe: Pipe) -> None:
    out, into = pipe
    os.write(into, LENGTH.pack(10) + b"{")
    with pytest.raises(TimeoutError):
        read(out, FromBench, 0.05)


def test_a_process_may_have_many_files_open(pipe: Pipe) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    out, into = pipe
    high = fcntl.fcntl(out, fcntl.F_DUPFD_CLOEXEC, 1500)
    write(into, Sample(1))
    assert read(high, ToBench, 1.0) == Sample(1)
    os.close(high)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
