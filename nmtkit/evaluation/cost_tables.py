"""Tables of what a training has cost, as pure functions of RUN/cost.json and RUN/scores.json: for a terminal, a page.

cost_tables         all of them: what it took, the paper's Table 2 with this run in it, how a prediction fared
prediction_table    what a training is expected to take, before it
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nmtkit.console import amount, duration

_PAPER_ROWS: tuple[tuple[str, float | None, float | None, float | None, float | None], ...] = (
    ("ByteNet", 23.75, None, None, None),
    ("Deep-Att + PosUnk", None, 39.2, None, 1.0e20),
    ("GNMT + RL", 24.6, 39.92, 2.3e19, 1.4e20),
    ("ConvS2S", 25.16, 40.46, 9.6e18, 1.5e20),
    ("MoE", 26.03, 40.56, 2.0e19, 1.2e20),
    ("Deep-Att + PosUnk Ensemble", None, 40.4, None, 8.0e20),
    ("GNMT + RL Ensemble", 26.30, 41.16, 1.8e20, 1.1e21),
    ("ConvS2S Ensemble", 26.36, 41.29, 7.7e19, 1.2e21),
    ("Transformer (base)", 27.3, 38.1, 3.3e18, None),
    ("Transformer (big)", 28.4, 41.8, 2.3e19, None),
)
"""Model, BLEU of newstest2014 en-de and en-fr, training FLOPs en-de and en-fr.

Source: Table 2. The FLOPs of the Transformers stand between the columns there; they are of en-de: 12 hours and 3.5 days
on 8 P100 of 9.5 TFLOP/s.
"""

_SHORTEST_UPDATE_SECONDS = 0.02
"""Under which other things than products are likely to take the time of an update."""

_METRIC_OF_PAIR = {("en", "de"): "bleu-compound-split", ("en", "fr"): "bleu-tokenized"}
"""In which metric the paper's BLEU can be compared."""

Scores = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""The form of RUN/scores.json."""


@dataclass(frozen=True)
class Table:
    """A table in words, to be drawn by whoever shows it."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def cost_tables(cost: Mapping[str, Any], scores: Scores | None = None) -> list[Table]:
    """What a training took; the paper's Table 2 with this run in it; and how a prediction made before it fared.

    Args:
        cost: as RUN/cost.json has it.
        scores: as RUN/scores.json has it.
    """
    tables = [training_table(cost), table_two(cost, scores or {})]
    if cost.get("prediction"):
        tables.append(prediction_fared(cost))
    return tables


def training_table(cost: Mapping[str, Any]) -> Table:
    """What the training took: tokens, time, operations by part, use of the device, energy, memory."""
    flops = cost["flops"]
    where = f"on {cost['processes']} x {cost['device']} ({cost['precision']}){_processor(cost)}"
    rows = [
        ["updates", f"{cost['updates']:,}"],
        ["target tokens seen", f"{cost['target_tokens']:,}"],
        ["time", f"{duration(cost['seconds'])} {where}"],
        ["FLOPs, counted", f"{scientific(flops)} ({amount(cost['flops_per_second'])}FLOP/s)"],
    ]
    parts = (
        ("forward", "flops_forward"),
        ("backward", "flops_backward"),
        ("encoder", "flops_encoder"),
        ("decoder", "flops_decoder"),
        ("softmax (output embedding)", "flops_output"),
        ("attention's products", "flops_attention"),
    )
    rows += [[f"  {name}", f"{scientific(cost[key])} ({percent(cost[key], flops)})"] for name, key in parts]
    padding = cost["flops_padding"]
    rows.append(["  additional, for padding", f"{scientific(padding)} (+{percent(padding, flops)})"])
    rows += _utilisation_rows(cost)
    how = f"time x devices x {amount(cost['sustained_flops_per_second'])}FLOP/s, {cost['sustained_source']}"
    rows.append(["FLOPs, the paper's estimate", f"{scientific(cost['flops_paper_estimate'])} ({how})"])
    for name, kind, how in (
        ("energy, GPUs", "gpu", "W per GPU on average, by NVML"),
        ("energy, processors and memory", "host", "W per machine on average, by RAPL, of everything that ran on it"),
    ):
        watts = f"; {cost[f'{kind}_joules'] / cost[f'{kind}_seconds']:.0f} {how}" if _is_measured(cost, kind) else ""
        rows.append([name, energy(cost, kind) + watts])
    if cost.get("memory_bytes") is not None:
        kind = "resident, first process" if cost["device"] in ("cpu", "mps") else "per device"
        rows.append(["peak memory", f"{amount(cost['memory_bytes'])}B ({kind})"])
    notes = ["FLOPs of matrix products (a x b times b x c: 2abc) for real tokens; validation is not counted."]
    return Table("Training cost", ["what", "value"], rows, notes)


def _processor(cost: Mapping[str, Any]) -> str:
    """The processor that computed or is to compute, where it is known."""
    return f", {cost['processor']}" if cost.get("processor") else ""


def _utilisation_rows(cost: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    if cost.get("mfu") is not None:
        rate = amount(cost["matmul_flops_per_second"])
        rows.append(["MFU, relative to measured products", f"{100 * cost['mfu']:.1f} % of {rate}FLOP/s each"])
    if cost.get("mfu_of_peak") is not None:
        rate = amount(cost["peak_flops_per_second"])
        rows.append(["MFU, relative to the data sheet", f"{100 * cost['mfu_of_peak']:.1f} % of {rate}FLOP/s each"])
    return rows


def energy(cost: Mapping[str, Any], kind: str) -> str:
    """The energy of the GPUs ("gpu") or the machines' processors ("host"), and how long it was measured, added up."""
    if not _is_measured(cost, kind):
        return "not measured"
    seconds = cost[f"{kind}_seconds"]
    share = ""
    if kind == "gpu" and cost["device_seconds"]:  # how many machines there were is not known
        share = f", {percent(seconds, cost['device_seconds'])} of the time"
    return f"{cost[f'{kind}_joules'] / 3.6e6:.3g} kWh (measured over {duration(seconds)}{share})"


def _is_measured(cost: Mapping[str, Any], kind: str) -> bool:
    return bool(cost.get(f"{kind}_joules") and cost.get(f"{kind}_seconds"))


def table_two(cost: Mapping[str, Any], scores: Scores, what: str = "this run") -> Table:
    """The paper's Table 2, and below it a run or a prediction: by the paper's estimate, and as it was counted."""
    pair = (cost.get("source_language", "?"), cost.get("target_language", "?"))
    pairs = [("en", "de"), ("en", "fr")]
    if pair not in pairs:
        pairs.append(pair)
    names = [f"{source}-{target}".upper() for source, target in pairs]
    columns = ["model", *(f"BLEU {name}" for name in names), *(f"FLOPs {name}" for name in names)]
    blank = [""] * (len(pairs) - 2)
    rows = []
    for model, bleu_de, bleu_fr, flops_de, flops_fr in _PAPER_ROWS:
        bleu = ["" if value is None else f"{value:g}" for value in (bleu_de, bleu_fr)]
        flops = ["" if value is None else scientific(value) for value in (flops_de, flops_fr)]
        rows.append([model, *bleu, *blank, *flops, *blank])
    own = cost.get("run", "this run")
    name = cost.get("newstest2014")
    reached = newstest2014_bleu(pair, scores, name)
    for how, value in (("the paper's estimate", cost["flops_paper_estimate"]), ("counted", cost["flops"])):
        here = [index for index, other in enumerate(pairs) if other == pair]
        bleu = ["" if index not in here or reached is None else f"{reached[0]:.2f}" for index in range(len(pairs))]
        flops = [scientific(value) if index in here else "" for index in range(len(pairs))]
        rows.append([f"{own}, {how}", *bleu, *flops])
    return Table(f"The paper's Table 2, and {what}", columns, rows, _table_two_notes(scores, name, reached))


def newstest2014_bleu(pair: tuple[str, str], scores: Scores, name: str | None) -> tuple[float, str] | None:
    """A run's BLEU of newstest2014 in the metric that the paper's can be compared with, and that metric's name.

    Args:
        name: of the test set that is newstest2014; None: none is.
    """
    metric = _METRIC_OF_PAIR.get(pair)
    entry = scores.get(name, {}).get(metric) if metric and name else None
    return (float(entry["score"]), str(metric)) if entry is not None else None


def _table_two_notes(scores: Scores, name: str | None, reached: tuple[float, str] | None) -> list[str]:
    notes = ["The paper's estimate is time x devices x sustained FLOP/s; counted are matrix products of real tokens."]
    if reached is not None:
        return [*notes, f"BLEU of this run: {reached[1]} on newstest2014."]
    found = [
        f"{test} {entry['score']:.2f} ({metric})"
        for test, entries in scores.items()
        for metric, entry in entries.items()
        if metric in ("bleu-tokenized", "sacrebleu")
    ]
    if found:
        other = "text other than the paper's newstest2014" if name is None else "languages or metrics not in the paper"
        notes.append(f"BLEU of this run, on {other}: {', '.join(found)}.")
    return notes


def prediction_table(predicted: Mapping[str, Any]) -> Table:
    """What a training is expected to take, in the form of RUN/prediction.json, with all that was assumed."""
    flops = predicted["flops"]
    epochs = "" if predicted["epochs"] is None else f", {predicted['epochs']:.1f} epochs"
    where = f"{predicted['devices']} x {predicted['device']} ({predicted['precision']}){_processor(predicted)}"
    rows = [
        ["updates", f"{predicted['updates']:,} ({predicted['limit']}{epochs})"],
        ["target tokens", f"{predicted['target_tokens']:,}"],
        ["parameters", f"{predicted['parameters']:,}"],
        ["FLOPs", f"{scientific(flops)} (forward a third, backward two)"],
    ]
    for name, key in (("encoder", "encoder"), ("decoder", "decoder"), ("softmax (output embedding)", "output")):
        rows.append(
            [f"  {name}", f"{scientific(predicted[f'flops_{key}'])} ({percent(predicted[f'flops_{key}'], flops)})"]
        )
    rows += [
        ["  additional, for padding", _expected_padding(predicted)],
        ["time", f"{duration(predicted['seconds'])} on {where}"],
        ["  per update", f"{predicted['seconds'] / predicted['updates']:.3g} s"],
        ["  rate per device", f"{amount(predicted['rate'])}FLOP/s ({predicted['rate_source']})"],
        ["  share of that rate", f"{100 * predicted['mfu']:.0f} % ({predicted['mfu_source']})"],
        [
            "memory per device",
            f"{amount(predicted['memory_bytes'])}B{_of_memory(predicted)} ({predicted['memory_source']})",
        ],
    ]
    rows.append(["tokens per micro-batch", f"{predicted['tokens_per_pass']:,}, including padding"])
    notes = [f"Lengths of the pairs: {predicted['lengths']}."]
    if predicted["seconds"] / predicted["updates"] < _SHORTEST_UPDATE_SECONDS:
        notes.append(
            "Do not trust the time: so short an update is bound by what the estimate leaves out (starting operations, "
            "exchanging gradients, making batches), not by the device's rate."
        )
    return Table("Expected cost of the training", ["what", "value"], rows, notes)


def _expected_padding(predicted: Mapping[str, Any]) -> str:
    padding = predicted["flops_padding"]
    if padding is None:
        return "known once the data are prepared"
    return f"{scientific(padding)} (+{percent(padding, predicted['flops'])})"


def _of_memory(predicted: Mapping[str, Any]) -> str:
    whole = predicted["device_memory_bytes"]
    if whole is None:
        return ""
    is_enough = predicted["memory_bytes"] <= whole
    return f" of {amount(whole)}B" + ("" if is_enough else ": it does not fit")


def prediction_fared(cost: Mapping[str, Any]) -> Table:
    """What was predicted before the training, and what came of it."""
    predicted = cost["prediction"]
    updates = (predicted["updates"], cost["updates"])
    whole = cost["device_seconds"] * predicted["rate"]  # what the rate that the prediction went by would have made
    pairs: list[tuple[str, float | None, float | None]] = [
        ("updates", *updates),
        ("target tokens", predicted["target_tokens"], cost["target_tokens"]),
        ("FLOPs", predicted["flops"], cost["flops"]),
        ("FLOPs for padding", predicted["flops_padding"], cost["flops_padding"]),
        ("seconds", predicted["seconds"], cost["seconds"]),
        ("seconds per update", predicted["seconds"] / updates[0], cost["seconds"] / updates[1] if updates[1] else None),
        ("MFU", predicted["mfu"], cost["flops"] / whole if whole else None),
        ("memory, bytes", predicted["memory_bytes"], cost["memory_bytes"]),
    ]
    rows = [
        [
            name,
            _figure(before),
            "" if after is None else _figure(after),
            "" if after is None or not before else f"{after / before:.3f}",
        ]
        for name, before, after in pairs
        if before is not None
    ]
    notes = [f"MFU {predicted['mfu_source']}."]
    if cost["device"] == "cpu" and cost["memory_bytes"]:
        notes.append("Memory: peak resident size including validation, which the prediction leaves out.")
    if updates[1] < updates[0]:
        notes.append(f"Training ended before {predicted['limit']}, or has not ended: compare the figures per update.")
    return Table("Prediction and outcome", ["what", "predicted", "outcome", "ratio"], rows, notes)


def _figure(value: float | int) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.4g}"


def scientific(value: float | int) -> str:
    """A large number in two digits: 3.3e18."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def percent(part: float | int, whole: float | int) -> str:
    """A share in percent with one decimal."""
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"
