"""The environment of each peer: how it is made, and how commands run in it.

WORK/text/                   the text in pieces
WORK/environments/PEER/      a virtual environment, with installed.txt: the versions in it
WORK/models/PEER-CONFIG/     a model with random weights, for translations of a forced length
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from peers import ctranslate2, opennmt, probe, sockeye, transformers
from peers.rules import SIZES, Rate, rate_of

ROOT = Path(__file__).parents[2]
PEERS: dict[str, ModuleType] = {
    "opennmt": opennmt, "transformers": transformers, "sockeye": sockeye, "ctranslate2": ctranslate2,
}  # fmt: skip
TRAINED = ("opennmt", "transformers", "sockeye")
"""Peers that train; CTranslate2 only translates."""
SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT / "benchmarks"),
    "TOKENIZERS_PARALLELISM": "false",
    # The checkpoints of OpenNMT-py and Sockeye hold Python objects, which torch.load refuses by default since 2.6.
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
}
END_SECONDS = 10.0
"""A peer trains so much longer than is measured, so that the last interval is complete."""


def execute(command: list[str], settings: dict[str, str] | None = None, folder: Path | None = None) -> None:
    """Run a command; its messages are shown only if it fails."""
    with tempfile.TemporaryFile() as log:
        environment = {**os.environ, **(settings or {})}
        code = subprocess.run(command, stderr=log, stdout=log, env=environment, cwd=folder).returncode
        if code:
            log.seek(0)
            sys.exit(f"{' '.join(command)}: exit code {code}\n{log.read().decode(errors='replace')[-2000:]}")


def set_up(peer: str, work: Path, python: str, constraints: Path) -> None:
    """Make the environment of a peer, unless it is there."""
    folder = work.resolve() / "environments" / peer
    if (folder / "installed.txt").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    execute([python, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    module = PEERS[peer]
    execute([*pip, "install", "--constraint", str(constraints), *module.REQUIREMENTS])
    if module.WITHOUT_DEPENDENCIES:
        execute([*pip, "install", "--no-deps", *module.WITHOUT_DEPENDENCIES])
    versions = subprocess.run([*pip, "freeze"], capture_output=True, text=True, check=True).stdout
    (folder / "installed.txt").write_text(versions, encoding="utf-8")


def run_in(peer: str, work: Path, arguments: list[str], threads: int, folder: Path, **settings: str) -> None:
    """Run the Python of a peer's environment."""
    environment = work.resolve() / "environments" / peer
    if not (environment / "installed.txt").exists():
        sys.exit(f"{peer} is not set up: python benchmarks/set_up_peers.py --work {work} {peer}")
    number = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    execute([str(environment / "bin" / "python"), *arguments], {**SETTINGS, **number, **settings}, folder)


def measure_training(peer: str, work: Path, config: str, threads: int, seconds: float | None) -> tuple[Rate, int]:
    """The rate of one run, and its mean number of target tokens per update."""
    size = SIZES[config]
    with tempfile.TemporaryDirectory() as name:
        folder, counts = Path(name), Path(name) / "counts"
        command = PEERS[peer].train(work.resolve() / "text", folder, size, 10**6)
        limit = size.warm_up + (seconds or size.measured) + END_SECONDS
        run_in(peer, work, command, threads, folder, **{probe.FILE: str(counts), probe.SECONDS: str(limit)})
        updates, tokens = [], 0
        for line in counts.read_text().splitlines():
            moment, of_update = line.split()
            tokens += int(of_update)
            updates.append((float(moment), tokens))
    return rate_of(updates, size.warm_up), round(tokens / len(updates))


def random_model(peer: str, work: Path, config: str, threads: int) -> Path:
    """A model of a peer after one update, made on first use."""
    model = work.resolve() / "models" / f"{peer}-{config}"
    if not model.exists():
        new = model.with_name(f"{model.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        run_in(peer, work, PEERS[peer].train(work.resolve() / "text", new, SIZES[config], 1), threads, new)
        new.rename(model)
    return model
