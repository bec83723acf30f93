"""What a run has cost: from the files of the run, and as tables."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nmtkit.errors import DataError, ModelError
from nmtkit.evaluation.cost import matmul_flops_per_second, read_cost, training_cost
from nmtkit.evaluation.cost_tables import cost_tables, prediction_table, table_two, training_table
from nmtkit.json_toml import read_json, write_json

STATE: dict[str, Any] = {
    "step": 1000,
    "target_tokens": 25_000_000,
    "seconds": 100.0,
    "device_seconds": 800.0,
    "processes": 8,
    "device": "NVIDIA H100 80GB HBM3",
    "precision": "bf16",
    "matmul_flops_per_second": 7.0e14,
    "flops": 300_000_000_000_000,
    "flops_encoder": 90_000_000_000_000,
    "flops_decoder": 120_000_000_000_000,
    "flops_output": 90_000_000_000_000,
    "flops_attention": 6_000_000_000_000,
    "flops_padding": 15_000_000_000_000,
    "recipe": {"data": {"source_language": "en", "target_language": "de", "test": ["wmt14/newstest2014"]}},
}
SCORES = {"newstest2014": {"bleu-compound-split": {"score": 27.41}, "sacrebleu": {"score": 26.5}}}


def write_run(folder: Path, step: int = 1000, **changes: Any) -> Path:
    """A run called "mine" with one save."""
    write_json(folder / "mine" / "resume" / f"step-{step:08d}" / "state.json", {**STATE, "step": step, **changes})
    return folder / "mine"


def rows_of(table: Any) -> dict[str, str]:
    return {row[0].strip(): row[1] for row in table.rows}


def test_forward_and_backward_and_the_parts_add_up(tmp_path: Path) -> None:
    cost = training_cost(write_run(tmp_path))
    assert cost["flops"] == cost["flops_forward"] + cost["flops_backward"] == STATE["flops"]
    assert cost["flops_backward"] == 2 * cost["flops_forward"]
    assert cost["flops"] == cost["flops_encoder"] + cost["flops_decoder"] + cost["flops_output"]
    shown = rows_of(training_table(cost))
    assert shown["encoder"] == "9.0e13 (30.0 %)"
    assert shown["backward"] == "2.0e14 (66.7 %)"
    assert shown["additional, for padding"] == "1.5e13 (+5.0 %)"


def test_use_of_the_device_is_a_share_of_measured_products_and_of_the_data_sheet(tmp_path: Path) -> None:
    cost = training_cost(write_run(tmp_path))
    assert cost["mfu"] == pytest.approx(3e14 / (800 * 7e14))
    assert (cost["peak_flops_per_second"], cost["mfu_of_peak"]) == (989.5e12, pytest.approx(3e14 / (800 * 989.5e12)))
    assert "H100 data sheet" in cost["peak_source"]
    unknown = training_cost(write_run(tmp_path / "cpu", device="cpu"))
    assert (unknown["peak_flops_per_second"], unknown["mfu_of_peak"], unknown["peak_source"]) == (None, None, None)
    assert "MFU, relative to the data sheet" not in rows_of(training_table(unknown))


@pytest.mark.parametrize(
    ("device", "precision", "rate", "source"),
    [
        ("Tesla P100-SXM2-16GB", "float32", 9.5e12, "the paper, footnote 5"),
        ("Tesla K80", "float32", 2.8e12, "the paper, footnote 5"),
        ("NVIDIA H200", "bf16", 989.5e12, "dense peak in bf16: NVIDIA H200"),
        ("Tesla V100-SXM2-16GB", "bf16", 7.0e14, "measured"),
        ("cpu", "float32", 7.0e14, "measured"),
    ],
)
def test_the_papers_estimate_is_time_times_devices_times_a_rate_that_says_its_source(
    tmp_path: Path, device: str, precision: str, rate: float, source: str
) -> None:
    cost = training_cost(write_run(tmp_path, device=device, precision=precision))
    assert cost["sustained_flops_per_second"] == rate
    assert cost["flops_paper_estimate"] == pytest.approx(800 * rate)
    assert cost["sustained_source"].startswith(source)


def test_energy_is_told_where_it_was_measured_and_else_not_measured(tmp_path: Path) -> None:
    nothing = training_cost(write_run(tmp_path / "a"))
    keys = ("gpu_joules", "gpu_seconds", "host_joules", "host_seconds")
    assert [nothing[key] for key in keys] == [None] * 4
    shown = rows_of(training_table(nothing))
    assert shown["energy, GPUs"] == shown["energy, processors and memory"] == "not measured"
    measured = {"gpu_joules": 3.6e6, "gpu_seconds": 400.0, "host_joules": 5000.0, "host_seconds": 100.0}
    shown = rows_of(training_table(training_cost(write_run(tmp_path / "b", **measured))))
    gpu, host = shown["energy, GPUs"], shown["energy, processors and memory"]
    assert gpu == "1 kWh (measured over 6m40s, 50.0 % of the time); 9000 W per GPU on average, by NVML"
    assert host.startswith("0.00139 kWh (measured over 1m40s); 50 W per machine on average, by RAPL")


def test_the_newest_file_that_knows_the_training_is_taken_and_named(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_run(tmp_path, step=2000, flops=1)
    write_json(run / "checkpoints" / "step-00003000" / "model.json", {})
    write_json(run / "checkpoints" / "step-00003000" / "provenance.json", {**STATE, "step": 3000})
    cost = training_cost(run)
    assert (cost["updates"], cost["state_file"]) == (3000, "checkpoints/step-00003000/provenance.json")
    with pytest.raises(ModelError, match="not trained yet"):
        training_cost(tmp_path)


def test_the_most_memory_of_all_reports_is_taken(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    assert training_cost(run)["memory_bytes"] is None
    lines = [{"step": step, "memory_bytes": used} for step, used in ((1, 5_000), (2, 9_000), (3, 7_000))]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert training_cost(run)["memory_bytes"] == 9_000
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "memory_bytes": 5}\n')
    assert training_cost(run)["memory_bytes"] == 5


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "prediction.json").write_text("{}")
    with pytest.raises(DataError, match=r"prediction\.json: updates is missing"):
        training_cost(run)
    (run / "resume" / "step-00001000" / "state.json").write_text('{"step": 1000}')
    with pytest.raises(DataError, match=r"state\.json: target_tokens is missing"):
        training_cost(run)


def test_the_cost_of_a_folder_whose_name_is_no_text_can_be_written(tmp_path: Path) -> None:
    run = write_run(tmp_path).rename(tmp_path / "q\udcff")
    write_json(run / "cost.json", training_cost(run))
    assert read_cost(run / "cost.json")["run"] == "q\\udcff"


def test_the_papers_table_2_stands_as_in_the_paper_with_the_run_below(tmp_path: Path) -> None:
    [table] = table_two(training_cost(write_run(tmp_path)), SCORES)
    assert table.columns == ["model", "BLEU EN-DE", "BLEU EN-FR", "FLOPs EN-DE", "FLOPs EN-FR"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["ByteNet"] == ["23.75", "", "", ""]
    assert rows["GNMT + RL"] == ["24.6", "39.92", "2.3e19", "1.4e20"]
    assert rows["ConvS2S"] == ["25.16", "40.46", "9.6e18", "1.5e20"]
    assert rows["MoE"] == ["26.03", "40.56", "2.0e19", "1.2e20"]
    assert rows["Transformer (base)"] == ["27.3", "38.1", "3.3e18", ""]
    assert rows["Transformer (big)"] == ["28.4", "41.8", "2.3e19", ""]
    assert list(rows)[-2:] == ["mine, the paper's estimate", "mine, counted"]
    assert rows["mine, the paper's estimate"] == ["27.41", "", "7.9e17", ""]
    assert rows["mine, counted"] == ["27.41", "", "3.0e14", ""]
    assert table.notes[-1] == "BLEU of this run: bleu-compound-split on newstest2014."
    of_french = {**training_cost(tmp_path / "mine"), "target_language": "fr", "newstest2014": "full"}
    french = {"full": {"bleu-tokenized": {"score": 38.0}, "bleu-compound-split": {"score": 1.0}}}
    assert table_two(of_french, french)[0].rows[-1] == ["mine, counted", "", "38.00", "", "3.0e14"]


def test_the_papers_own_figures_follow_from_its_estimate(tmp_path: Path) -> None:
    cost = training_cost(write_run(tmp_path))
    rows = {row[0]: row[3] for row in table_two(cost, {})[0].rows}
    for model, hours in (("Transformer (base)", 12), ("Transformer (big)", 3.5 * 24)):
        assert float(rows[model]) == pytest.approx(hours * 3600 * 8 * 9.5e12, rel=0.02)


def test_a_model_of_both_directions_has_table_2_and_one_of_a_single_language_has_none(tmp_path: Path) -> None:
    cost = training_cost(write_run(tmp_path))
    assert table_two({**cost, "source_language": "mul", "target_language": "mul"}, {})[0].columns[-1] == "FLOPs MUL-MUL"
    assert table_two({**cost, "source_language": "de", "target_language": "de"}, {}) == []


def test_bleu_of_other_text_than_newstest2014_is_kept_out_of_the_papers_columns(tmp_path: Path) -> None:
    other = {"test2016": {"bleu-tokenized": {"score": 41.02}, "chrf2": {"score": 60.0}}}
    recipe = {"data": {**STATE["recipe"]["data"], "test": ["multi30k/test2016"]}}
    [table] = table_two(training_cost(write_run(tmp_path, recipe=recipe)), other)
    assert table.rows[-1][1:3] == ["", ""]
    assert "on text other than the paper's newstest2014: test2016 41.02 (bleu-tokenized)." in table.notes[-1]
    czech = {"data": {**STATE["recipe"]["data"], "target_language": "cs"}}
    [table] = table_two(training_cost(write_run(tmp_path / "cs", recipe=czech)), SCORES)
    assert "on languages or metrics not in the paper: newstest2014 26.50 (sacrebleu)." in table.notes[-1]
    assert table.columns[3] == "BLEU EN-CS"
    assert table.columns[-1] == "FLOPs EN-CS"
    assert table.rows[-1] == ["mine, counted", "", "", "", "", "", "3.0e14"]
    assert {len(row) for row in table.rows} == {len(table.columns)}


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("wmt14/newstest2014", "newstest2014"),
        ("sacrebleu:wmt14/full", "full"),
        ("sacrebleu:wmt14", None),
        ("wmt14/newstest2014-filtered", None),
        ({"source": "a", "target": "b", "name": "newstest2014"}, None),
        ({"corpus": "sacrebleu:wmt14/full", "name": "newstest2014"}, "newstest2014"),
        ({"corpus": "wmt14/newstest2014", "name": None}, "newstest2014"),
        ({"corpus": "sacrebleu:wmt14", "name": "newstest2014"}, None),
    ],
)
def test_the_papers_test_set_is_known_by_its_corpus_whatever_it_is_called(
    tmp_path: Path, test: Any, name: str | None
) -> None:
    recipe = {"data": {**STATE["recipe"]["data"], "test": ["multi30k/test2016", test]}}
    assert training_cost(write_run(tmp_path, recipe=recipe))["newstest2014"] == name


def test_the_tables_are_functions_of_cost_json_alone_and_take_that_of_the_published_run(tmp_path: Path) -> None:
    stored = json.loads(json.dumps(training_cost(write_run(tmp_path))))
    titles = [table.title for table in cost_tables(stored, SCORES)]
    assert titles == ["Training cost", "The paper's Table 2, and this run"]
    folder = Path(__file__).parent.parent.parent / "docs" / "results" / "multi30k-en-de"
    tables = cost_tables(read_cost(folder / "cost.json"), read_json(folder / "scores.json"))
    assert rows_of(tables[0])["updates"] == "6,000"


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_measuring_products_draws_nothing_from_the_programs_own_random_numbers(
    precision: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision != "float32":  # slow on a CPU
        monkeypatch.setattr("nmtkit.evaluation.cost._best_seconds", lambda left, right: 1.0)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert matmul_flops_per_second(torch.device("cpu"), precision) > 0
    assert torch.equal(torch.rand(1), expected)


def test_a_prediction_says_what_it_assumes() -> None:
    predicted = {
        "updates": 100, "limit": "max_steps = 100", "epochs": None, "lengths": "assumed", "parameters": 5,
        "target_tokens": 1000, "flops": 3_000_000, "flops_encoder": 1_000_000, "flops_decoder": 1_500_000,
        "flops_output": 500_000, "flops_attention": 1000, "flops_padding": 30_000, "devices": 8, "device": "h200",
        "precision": "bf16", "rate": 989.5e12, "rate_source": "a sheet", "mfu": 0.3, "mfu_source": "of a run",
        "seconds": 50.0, "tokens_per_pass": 4096, "memory_bytes": 3 * 10**9,
        "device_memory_bytes": 141e9, "memory_source": "measured",
    }  # fmt: skip
    table = prediction_table(predicted)
    shown = rows_of(table)
    assert shown["time"] == "50s on 8 x h200 (bf16)"
    assert shown["per update"] == "0.5 s"
    assert shown["share of that rate"] == "30 % (of a run)"
    assert shown["memory per device"] == "3 GB of 141 GB (measured)"
    assert shown["additional, for padding"] == "3.0e4 (+1.0 %)"
    assert table.notes[0] == "Lengths of the pairs: assumed."
    assert not [note for note in table.notes if "Do not trust the time" in note]
    assert "Do not trust the time" in prediction_table({**predicted, "seconds": 0.5}).notes[-1]
    unknown = prediction_table({**predicted, "flops_padding": None})
    assert rows_of(unknown)["additional, for padding"] == "known once the data are prepared"


def test_the_rate_of_products_is_the_best_of_their_layouts_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without bf16 instructions, where the layout of a plain a @ b is by far the slowest and small ones are fast."""
    seconds = {(128, True): 1e-3, (128, False): 1e-4, (256, True): 0.02, (256, False): 1e-3, (512, True): 0.2}
    measured = []

    def product(left: torch.Tensor, right: torch.Tensor) -> float:
        measured.append((len(left), left.is_contiguous(), right.is_contiguous(), left.dtype))
        return seconds.get((len(left), left.is_contiguous() and right.is_contiguous()), 0.05)

    monkeypatch.setattr("nmtkit.evaluation.cost._best_seconds", product)
    rate = matmul_flops_per_second(torch.device("cpu"), "bf16")
    assert rate == pytest.approx(2 * 128**3 / 1e-4)
    layouts = [(False, True), (True, False), (True, True)]
    assert sorted(set(measured)) == [(size, *layout, torch.bfloat16) for size in (128, 256, 512) for layout in layouts]
