"""The GPU benchmark of decoding, tried on a CPU with a tiny model: it measures, isolates failures, and each of its ways
to run a step translates as nmtkit does."""

import importlib.util
import json
import weakref
from pathlib import Path
from types import ModuleType

import pytest
import torch

from nmtkit.config.model_schema import ModelConfig
from nmtkit.data.batch import pad
from nmtkit.model.step_decoder import StepDecoder
from nmtkit.model.transformer import Transformer
from nmtkit.text.vocabulary import EOS
from tests.benchmarks.conftest import ROOT, execute

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "benchmarks" / "translate_gpu.py"
HAS_CTRANSLATE2 = importlib.util.find_spec("ctranslate2") is not None


@pytest.fixture
def benchmark() -> ModuleType:
    import translate_gpu

    return translate_gpu


@pytest.fixture
def modes() -> ModuleType:
    import decoding_modes

    return decoding_modes


def run(output: Path, *arguments: str) -> dict:
    out = execute(SCRIPT, "--device", "cpu", "--models", "tiny", "--output", output, *arguments)
    return {**json.loads(output.read_text()), "stdout": out}


def test_it_measures_a_tiny_model_on_a_cpu(tmp_path: Path) -> None:
    options = ["--batch-sizes", "1,4", "--length", "12", "--modes", "eager,graphs,ctranslate2"]
    report = run(tmp_path / "out.json", *options)
    measured = {(found["mode"], found["batch_size"]): found for found in report["measurements"]}
    assert not [found["error"] for found in measured.values() if "error" in found]
    expected = ["eager", "graphs", "ctranslate2"] if HAS_CTRANSLATE2 else ["eager", "graphs"]
    assert list(measured) == [(mode, size) for size in (1, 4) for mode in expected]
    assert HAS_CTRANSLATE2 or report["notes"] == ["tiny: CTranslate2 is not measured: it is not installed"]
    for (mode, size), found in measured.items():
        assert len(found["rounds"]) == 2
        assert [one["sentences"] for one in found["rounds"]] == [3 * size] * 2
        assert found["target_tokens_per_second"] == pytest.approx(12 * found["sentences_per_second"])
        if HAS_CTRANSLATE2:
            peer = measured["ctranslate2", size]["sentences_per_second"]
            assert found["to_ctranslate2"] == pytest.approx(found["sentences_per_second"] / peer)
        if mode != "ctranslate2":
            assert sum(found["parts"]["shares"].values()) == pytest.approx(1)
            assert {"matrix products", "attention", "reordering of hypotheses"} <= set(found["parts"]["shares"])
            assert found["same_translations"] == 1.0
    goals = {(goal["eager"], goal["met"], goal["best"], goal["met_by_best"]) for goal in report["goals"]}
    assert goals == set()  # no batch of 64 and up was measured
    assert len(report["commit"]) == 40
    assert report["options"]["batch_sizes"] == [1, 4]
    assert "goals" in report["stdout"]


@pytest.mark.slow
def test_it_measures_compiled_decoding(tmp_path: Path) -> None:
    options = ["--batch-sizes", "4", "--length", "12", "--modes", "eager,compiled,compiled-graphs"]
    report = run(tmp_path / "out.json", *options)
    eager, *compiled = report["measurements"]
    assert [found["mode"] for found in compiled] == ["compiled", "compiled-graphs"]
    for found in compiled:
        assert "error" not in found
        assert found["compiled_while_measured"] == 0
        assert found["same_translations"] > 0.9
    assert compiled[0]["compiled_pieces"] > 0
    assert compiled[0]["compile_seconds"] > 0
    assert eager["compiled_pieces"] == 0


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_recorded_steps_compute_what_plain_ones_do(modes: ModuleType, norm: str) -> None:
    torch.manual_seed(1)
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "norm": norm}
    model = Transformer(ModelConfig.model_validate({**sizes, "d_v": 4}), 50, 50).eval()
    decoder, beam, steps = StepDecoder(model), 3, 20  # beyond the first capacity of the caches
    recordings = modes.Recordings(decoder, 50, beam, modes.record_operators)
    kinds = [[5, 9], [7, 7], [32, 3], [3, 31], [40, 2], [2, 33], [1, 2], [63, 63], [12, 12]]
    for lengths in kinds * 2:
        source = pad([torch.randint(4, 50, (length - 1,)).tolist() for length in lengths], end=EOS)
        with torch.inference_mode():
            plain = modes.plain_stepper(decoder, source, torch.tensor(lengths))
            recorded = recordings.stepper(source, torch.tensor(lengths))
            for number in range(steps):
                rows = torch.zeros(2, beam, dtype=torch.long)
                if number:
                    per_sentence = 1 if number == 1 else beam
                    rows = torch.randint(per_sentence, (2, beam)) + torch.tensor([[0], [per_sentence]])
                    plain.select(rows)
                    recorded.select(rows)
                ids = torch.randint(4, 50, (2 * beam if number else 2,))
                torch.testing.assert_close(recorded.step(ids), plain.step(ids), rtol=0, atol=1e-5)
    assert len(recordings._of_shape) == 2
    assert all(len(stepper._recorded) == steps for stepper in recordings._of_shape.values())


def test_what_is_compiled_computes_what_plain_steps_do(modes: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._dynamo.config, "specialize_int", False)  # what it sets is undone after the test
    monkeypatch.setattr(torch, "compile", lambda work, **_: work)
    torch.manual_seed(1)
    sizes = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "d_v": 4}
    model = Transformer(ModelConfig.model_validate(sizes), 50, 50).eval()
    plain, compiled = StepDecoder(model), modes.CompiledDecoder(model)
    for lengths in ([5, 9], [7, 7]):  # with padding and without
        source = pad([torch.randint(4, 50, (length - 1,)).tolist() for length in lengths], end=EOS)
        with torch.inference_mode():
            states = [decoder.start(source, torch.tensor(lengths)) for decoder in (plain, compiled)]
            for number in range(20):
                ids = torch.randint(4, 50, (6 if number else 2,))
                expected, found = plain.step(ids, states[0]), compiled.step(ids, states[1])
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
                rows = torch.randint(3 if number else 1, (2, 3)) + torch.tensor([[0], [3 if number else 1]])
                for state in states:
                    state.select(rows)


def test_a_recording_refuses_what_it_does_not_hold(modes: ModuleType) -> None:
    model = Transformer(ModelConfig.model_validate({"d_model": 8, "d_ff": 8, "num_heads": 2}), 20, 20).eval()
    recordings = modes.Recordings(StepDecoder(model), 20, 2, modes.record_operators)
    source, lengths = torch.tensor([[5, 6, EOS], [7, 8, EOS]]), torch.tensor([3, 3])
    with torch.inference_mode():
        for _ in range(2):
            recordings.stepper(source, lengths).step(torch.tensor([2, 2]))
        stepper = recordings.stepper(source, lengths)
        stepper.step(torch.tensor([2, 2]))
        with pytest.raises(ValueError, match="give them one length"):
            stepper.select(torch.tensor([[0, 0]]))
        stepper.select(torch.tensor([[0, 0], [1, 1]]))
        with pytest.raises(ValueError, match="beyond the 1 recorded"):
            stepper.step(torch.tensor([2, 2, 2, 2]))


def test_a_recording_keeps_the_caches_that_it_began_with(modes: ModuleType) -> None:
    model = Transformer(ModelConfig.model_validate({"d_model": 8, "d_ff": 8, "num_heads": 2}), 20, 20).eval()
    decoder = StepDecoder(model)
    with torch.inference_mode():
        started = decoder.start(torch.tensor([[5, 6, EOS]]), torch.tensor([3]), fold=False)
        cache = weakref.ref(started._buffer)
        stepper = modes.RecordedStepper(decoder, started, 32, (20, 2), lambda work: work)
        del started
        stepper.step(torch.tensor([2]))
        for _ in range(4):
            stepper.select(torch.tensor([[0, 0]]))
            stepper.step(torch.tensor([4, 5]))
        stepper.finish_recording()
    # A graph holds addresses only: were the memory given to others, its first step would overwrite theirs.
    assert cache() is not None


class Fake:
    """A system that gives translations of one length, until it fails."""

    warmups = 1

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.calls = self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def translate(self, batches: list) -> list[tuple[int, ...]]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("out of memory")
        return [(1, 2, 3)] * sum(map(len, batches))


def test_a_system_that_fails_is_told_and_the_others_go_on(benchmark: ModuleType) -> None:
    systems = {
        ("eager", "fp16"): (Fake(fails_at=1), 0),
        ("compiled", "fp16"): (Fake(fails_at=5), 0),  # in its second round
        ("graphs", "fp16"): (Fake(), 7),
        ("ctranslate2", "fp16"): (Fake(), 0),
    }
    options = benchmark.argparse.Namespace(rounds=2, length=3, batches=2, sentences=100)
    found = benchmark.measure(systems, "tiny", 4, torch.device("cpu"), options)
    assert [one.get("error") for one in found] == [
        "tiny, eager, fp16, batch 4: RuntimeError: out of memory",
        "tiny, compiled, fp16, batch 4: RuntimeError: out of memory",
        None,
        None,
    ]
    assert [len(one["rounds"]) for one in found] == [0, 1, 2, 2]
    assert [one["sentences"] for one in found[2]["rounds"]] == [8, 8]
    assert found[2]["to_ctranslate2"] == found[2]["sentences_per_second"] / found[3]["sentences_per_second"]
    assert (found[2]["peak_memory_bytes"], found[3]["peak_memory_bytes"]) == (7, None)
    assert all(system.begun for system, _ in systems.values())


def test_translations_of_another_length_are_refused(benchmark: ModuleType) -> None:
    options = benchmark.argparse.Namespace(rounds=1, length=4, batches=1, sentences=100)
    (found,) = benchmark.measure({("eager", "fp16"): (Fake(), 0)}, "tiny", 2, torch.device("cpu"), options)
    assert "2 translations do not have 4 tokens; one has 3" in found["error"]


def test_fp16_is_refused_on_a_cpu(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["translate_gpu.py", "--device", "cpu", "--models", "tiny", "--precisions", "fp16"])
    monkeypatch.setattr(benchmark, "set_up", lambda: None)
    with pytest.raises(SystemExit, match="choose float32 or bf16"):
        benchmark.main()


def test_goals_are_judged_by_eager_decoding_and_by_the_best_mode(benchmark: ModuleType) -> None:
    def found(model: str, size: int, mode: str, ratio: float | None, precision: str = "fp16") -> dict:
        return {
            "model": model, "batch_size": size, "mode": mode, "precision": precision, "to_ctranslate2": ratio,
        }  # fmt: skip

    measurements = [
        found("base", 16, "eager", 0.1),
        found("base", 64, "eager", 0.5),
        found("base", 64, "eager", 0.9, "float32"),
        found("base", 64, "graphs", 0.8),
        found("base", 64, "ctranslate2", 1.0),
        found("big", 64, "eager", None),
        {"model": "big", "batch_size": 64, "mode": "graphs", "precision": "fp16", "error": "out of memory"},
    ]
    base, big = benchmark.judge(measurements, [16, 64])
    assert (base["eager"], base["met"]) == (0.5, False)
    assert (base["best"], base["best_mode"], base["met_by_best"]) == (0.8, "graphs fp16", True)
    assert (big["eager"], big["met"], big["best"], big["met_by_best"]) == (None, None, None, None)
    assert benchmark.outcome(base["eager"], base["met"]) == ("0.50", "no")
    assert benchmark.outcome(big["eager"], big["met"]) == ("", "open")


def test_batches_hold_like_lengths_and_are_the_same_each_time(benchmark: ModuleType) -> None:
    options = benchmark.argparse.Namespace(batches=3, sentences=40)
    batches = benchmark.batches_of(16, 500, options)
    assert [len(batch) for batch in batches] == [16, 16]  # 40 sentences at most
    lengths = [len(source) for batch in batches for source in batch]
    assert lengths == sorted(lengths, reverse=True)
    assert batches == benchmark.batches_of(16, 500, options)
    assert [len(batch) for batch in benchmark.batches_of(64, 500, options)] == [64]


@pytest.mark.parametrize(
    ("chain", "kernel", "part"),
    [
        ("aten::linear > aten::addmm", "nvjet_tst_128x256", "matrix products"),
        ("", "sm90_xmma_gemm_f16f16", "matrix products"),
        ("aten::bmm", "gemm", "attention"),
        ("aten::softmax > aten::_softmax", "softmax_warp_forward", "attention"),
        ("aten::log_softmax > aten::_log_softmax", "cunn_SoftMaxForward", "log-probabilities"),
        ("", "cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>", "log-probabilities"),
        ("aten::index_select", "indexSelectLargeIndex", "reordering of hypotheses"),
        ("", "at::native::indexSelectLargeIndex", "reordering of hypotheses"),
        ("aten::embedding > aten::index_select", "indexSelectSmallIndex", "embeddings"),
        ("aten::topk", "gatherTopK", "search"),
        ("aten::copy_", "elementwise_kernel", "copies and casts"),
        ("aten::native_layer_norm", "vectorized_layer_norm_kernel", "norms, elementwise"),
    ],
)
def test_kernels_of_decoding_are_told_apart(benchmark: ModuleType, chain: str, kernel: str, part: str) -> None:
    assert benchmark.part_of(chain, kernel) == part
