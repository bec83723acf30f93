"""Threads of a process: as many as it may use cores, divided among the processes of a command."""

import os
from pathlib import Path

import pytest

from nmtkit.distributed import interpreter
from nmtkit.distributed.cpu import threads_each
from nmtkit.distributed.interpreter import available_cores


@pytest.mark.parametrize(("stated", "cores"), [("max 100000", 64), ("450000 100000", 4), ("50000 100000", 1)])
def test_a_process_has_the_cores_of_its_container(
    stated: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(f"{stated}\n")
    monkeypatch.setattr(interpreter, "_CPU_MAX", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    assert available_cores() == threads_each(1) == cores
    assert threads_each(2) == max(1, cores // 2)
