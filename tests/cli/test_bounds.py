"""Numbers that no honest use meets are refused in one line: of options, and of the environment of several processes."""

import errno
import os
import re
import subprocess
from typing import Any

import pytest

from nmtkit.cli.main import COMMANDS, load_command
from nmtkit.distributed import launch as launcher
from nmtkit.distributed.workers import Workers
from nmtkit.errors import NmtkitError
from tests.cli.outcomes import refusal


def numbers() -> list[tuple[str, Any]]:
    found = [(name, parameter) for name in COMMANDS for parameter in load_command(name).params]
    return [(name, one) for name, one in found if re.search(r"\b(int|float)\b", str(one.type_descriptor.annotation))]


def test_every_number_of_every_command_has_both_bounds() -> None:
    assert len(numbers()) > 40
    assert [(name, one.name) for name, one in numbers() if one.min is None or one.max is None] == []
    of_machine = {one.max for _, one in numbers() if one.name in ("threads", "processes", "workers", "jobs")}
    assert of_machine == {32 * (os.cpu_count() or 1)}


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is ''; a launcher sets a whole number, else unset it"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE is '-1'"),
        ({"WORLD_SIZE": "\x1b[2J"}, r"WORLD_SIZE is '\x1b[2J'"),
        ({"LOCAL_WORLD_SIZE": "1.5"}, "LOCAL_WORLD_SIZE is '1.5'"),
        ({"WORLD_SIZE": "2"}, "RANK is missing"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "x"}, "LOCAL_RANK is 'x'"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"}, "cannot meet the other processes through None:1: "),
        (
            {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "a..b", "MASTER_PORT": "1"},
            "other processes through a..b:1: ",
        ),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "70000"}, "MASTER_PORT = 70000: ports go"),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            "RANK = 2, but WORLD_SIZE = 2: ranks go from 0 to 1",
        ),
    ],
)
def test_a_garbled_environment_of_several_processes_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NmtkitError) as raised:
        Workers.start("cpu")
    assert told in str(raised.value)


@pytest.mark.parametrize("command", ["train", "run", "translate"])
def test_a_garbled_rank_ends_a_command_in_one_line(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("RANK", "x")
    told = "the environment variable RANK is 'x'; a launcher sets a whole number, else unset it"
    assert refusal(command, "quickstart") == told


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EMFILE])
def test_processes_that_cannot_be_started_take_those_with_them_that_were(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise OSError(code, os.strerror(code))
        started.append(popen(["sleep", "100"], **options))
        return started[0]

    monkeypatch.setattr(launcher.subprocess, "Popen", start)
    told = refusal("train", "quickstart", "--processes", 2, "--device", "cpu")
    assert told.startswith(f"{os.strerror(code)}; ")
    assert started[0].wait(10) == -9
