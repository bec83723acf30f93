"""What the benchmarks of speed share: how a rate is taken, and what each peer is given."""

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture
def environments(tmp_path: Path) -> ModuleType:
    """The module, and in tmp_path the text with an environment "toy" that is this Python."""
    from peers import environments

    text = tmp_path / "text"
    text.mkdir()
    (text / "vocabulary").write_text("▁a\nb\n", encoding="utf-8")
    (tmp_path / "environments" / "toy" / "bin").mkdir(parents=True)
    (tmp_path / "environments" / "toy" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "environments" / "toy" / "installed.txt").touch()
    return environments


def test_a_rate_is_the_median_over_intervals_after_the_warm_up() -> None:
    from peers.rules import Rate, rate_of

    # 100 tokens a second, but 900 in the warm-up, and 300 in the last of three intervals
    seconds = range(0, 66, 5)
    tokens = [4500 * step if step <= 4 else 18000 + 500 * (step - 4) for step in range(len(seconds))]
    tokens[11:] = [tokens[10] + 1500 * step for step in range(1, len(tokens) - 10)]
    updates = list(zip(map(float, seconds), tokens, strict=True))
    assert rate_of(updates, 20.0) == Rate(100.0, 100.0, 300.0)
    assert rate_of(updates, 0.0).most == 900.0
    with pytest.raises(ValueError, match="no interval of 10 s in 6 updates; use more --seconds"):
        rate_of(updates[:6], 20.0)


def test_the_rate_of_a_translation_leaves_out_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from peers import rules

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(rules, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def translate(source: Path, output: Path) -> None:
        text = source.read_text()
        clock.now += 3.0 + 0.5 * text.count("\n")
        output.write_text(text.upper())

    assert rules.measure_translation(translate, ["a", "b", "c"]) == {"startup": 3.5, "rate": 2.0}
    with pytest.raises(AssertionError):
        rules.measure_translation(lambda source, output: output.touch() or None, ["a", "b"])


def test_each_peer_trains_the_size_that_nmtkit_has(environments: ModuleType, tmp_path: Path) -> None:
    from peers.rules import SIZES

    size, text = SIZES["base"], tmp_path / "text"
    for peer in environments.TRAINED:
        (tmp_path / peer).mkdir()
        arguments = environments.PEERS[peer].train(text, tmp_path / peer, size, 7)
        assert arguments[:2] == ["-m", f"peers.{peer}"]
        if peer == "opennmt":
            given = json.loads((tmp_path / peer / "train.yaml").read_text())
            assert (given["layers"], given["hidden_size"], given["transformer_ff"], given["heads"]) == (6, 512, 2048, 8)
            assert (given["train_steps"], given["batch_size"]) == (7, 4096)
            assert given["learning_rate"] * (512 * 100) ** -0.5 == pytest.approx(0.0007)
            assert (tmp_path / peer / "vocabulary.txt").read_text(encoding="utf-8") == "▁a\t100\nb\t100\n"
        elif peer == "sockeye":
            given = dict(zip(arguments[2::2], arguments[3::2], strict=False))
            assert (given["--num-layers"], given["--transformer-model-size"]) == ("6:6", "512")
            assert (given["--max-updates"], given["--batch-size"]) == ("7", "4096")
            assert float(given["--initial-learning-rate"]) == pytest.approx(0.007)
            assert json.loads((tmp_path / peer / "vocabulary.json").read_text())["▁a"] == 4
        else:
            assert json.loads(arguments[5])["d_ff"] == 2048


def test_training_is_counted_in_the_environment_of_the_peer_and_ends_in_time(
    environments: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peers import rules

    program = """
import time
from peers import probe
class Trainer:
    def step(self, batch):
        time.sleep(0.01)
probe.watch(Trainer, "step", lambda trainer, batch: len(batch))
while True:
    Trainer().step("words")
"""
    toy = SimpleNamespace(train=lambda text, folder, size, updates: ["-c", program])
    monkeypatch.setitem(environments.PEERS, "toy", toy)
    monkeypatch.setitem(environments.SIZES, "tiny", rules.Size(1, 2, 2, 1, 0.1, warm_up=0.05, measured=9.0))
    monkeypatch.setattr(environments, "END_SECONDS", 0.05)
    monkeypatch.setattr(rules, "INTERVAL_SECONDS", 0.05)
    rate, tokens_per_update = environments.measure_training("toy", tmp_path, "tiny", 1, seconds=0.2)
    assert tokens_per_update == 5
    assert 0 < rate.least <= rate.median <= rate.most < 500


def test_a_failure_shows_what_the_peer_printed(environments: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)exit code 1\n.*it broke"):
        environments.run_in("toy", tmp_path, ["-c", "raise SystemExit('it broke')"], 1, tmp_path)
    with pytest.raises(
        SystemExit, match=r"opennmt is not set up: python benchmarks/set_up_peers.py --work \S+ opennmt"
    ):
        environments.run_in("opennmt", tmp_path, [], 1, tmp_path)


def test_only_known_peers_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import set_up_peers
    import translate

    for module, options in (
        (set_up_peers, ["fairseq"]),
        (translate, ["--peers", "fairseq"]),
        (translate, ["--model", "run", "--peers", "transformers", "sockeye:1"]),
    ):
        monkeypatch.setattr(sys, "argv", ["benchmark", "--work", str(tmp_path), *options])
        with pytest.raises(SystemExit) as ended:
            module.main()
        assert ended.value.code == 2
        assert options[-1] in capsys.readouterr().err
    assert translate.peer_and_threads("sockeye:1", argparse.Namespace(threads=2)) == ("sockeye", 1)
    assert translate.peer_and_threads("sockeye", argparse.Namespace(threads=2)) == ("sockeye", 2)
