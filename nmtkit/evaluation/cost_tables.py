"""Tables of the cost of a training, as pure functions of RUN/cost.json and RUN/scores.json, for terminal and page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nmtkit.config.corpus_entries import MANY_LANGUAGES
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
"""In shorter updates other things than matrix products are likely to take most of the time."""
_PARTS = {"encoder": "flops_encoder", "decoder": "flops_decoder", "softmax (output embedding)": "flops_output"}
"""Parts of a model, and the keys of their operations."""
_METRIC_OF_PAIR = {("en", "de"): "bleu-compound-split", ("en", "fr"): "bleu-tokenized"}
"""The metric that is comparable to the paper's BLEU."""

TARGET_TOKENS = "target tokens"  # the unit of files of older versions, which state none

Scores = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""The form of RUN/scores.json."""


@dataclass(frozen=True)
class Table:
    """A table in words, for a terminal or a page."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]


def cost_tables(cost: Mapping[str, Any], scores: Scores) -> list[Table]:
    """Return what a training took; the paper's Table 2 with this run in it; and the outcome of a prediction, if any.

    Args:
        cost, scores: the content of RUN/cost.json and RUN/scores.json.
    """
    tables = [training_table(cost), *table_two(cost, scores)]
    return [*tables, prediction_fared(cost)] if cost.get("prediction") else tables


def training_table(cost: Mapping[str, Any]) -> Table:
    """Return what the training took: tokens, time, operations by part, use of the device, energy, memory."""
    flops, padding = cost["flops"], cost["flops_padding"]
    where = f"on {cost['processes']} x {cost['device']} ({cost['precision']}){_processor(cost)}"
    rows = [
        ["updates", f"{cost['updates']:,}"],
        [f"{cost.get('unit') or TARGET_TOKENS} seen", f"{cost['target_tokens']:,}"],
        ["time", f"{duration(cost['seconds'])} {where}"],
        ["FLOPs, counted", f"{scientific(flops)} ({amount(cost['flops_per_second'])}FLOP/s)"],
    ]
    passes = {"forward": "flops_forward", "backward": "flops_backward"}
    for part, key in {**passes, **_PARTS, "attention's products": "flops_attention"}.items():
        rows.append([f"  {part}", f"{scientific(cost[key])} ({percent(cost[key], flops)})"])
    rows.append(["  additional, for padding", f"{scientific(padding)} (+{percent(padding, flops)})"])
    for name, share, rate in (
        ("measured products", "mfu", "matmul_flops_per_second"),
        ("the data sheet", "mfu_of_peak", "peak_flops_per_second"),
    ):
        if cost.get(share) is not None and cost[rate] is not None:
            value = f"{100 * cost[share]:.1f} % of {amount(cost[rate])}FLOP/s each"
            rows.append([f"MFU, relative to {name}", value])
    how = f"time x devices x {amount(cost['sustained_flops_per_second'])}FLOP/s, {cost['sustained_source']}"
    rows.append(["FLOPs, the paper's estimate", f"{scientific(cost['flops_paper_estimate'])} ({how})"])
    for name, kind, how in (
        ("energy, GPUs", "gpu", "W per GPU on average, by NVML"),
        ("energy, processors and memory", "host", "W per machine on average, by RAPL, of everything that ran on it"),
    ):
        watts = f"; {cost[f'{kind}_joules'] / cost[f'{kind}_seconds']:.0f} {how}" if _is_measured(cost, kind) else ""
        rows.append([name, energy(cost, kind) + watts])
    if cost.get("memory_bytes") is not None:
        # On a CPU and on Apple's GPUs, tensors are in the memory of the process.
        kind = "resident, first process" if cost["device"] in ("cpu", "mps") else "per device"
        rows.append(["peak memory", f"{amount(cost['memory_bytes'])}B ({kind})"])
    notes = ["FLOPs of matrix products (a x b times b x c: 2abc) for real tokens; validation is not counted."]
    return Table("Training cost", ["what", "value"], rows, notes)


def _processor(cost: Mapping[str, Any]) -> str:
    return f", {cost['processor']}" if cost.get("processor") else ""


def energy(cost: Mapping[str, Any], kind: str) -> str:
    """Return the energy of the GPUs ("gpu") or of the machines' processors ("host"), with the time measured."""
    if not _is_measured(cost, kind):
        return "not measured"
    seconds = cost[f"{kind}_seconds"]
    share = ""
    if kind == "gpu" and cost["device_seconds"]:  # the number of machines is not known
        share = f", {percent(seconds, cost['device_seconds'])} of the time"
    return f"{cost[f'{kind}_joules'] / 3.6e6:.3g} kWh (measured over {duration(seconds)}{share})"


def _is_measured(cost: Mapping[str, Any], kind: str) -> bool:
    return bool(cost.get(f"{kind}_joules") and cost.get(f"{kind}_seconds"))


def table_two(cost: Mapping[str, Any], scores: Scores, what: str = "this run") -> list[Table]:
    """Return the paper's Table 2, and below it a run or a prediction: by the paper's estimate, and as counted.

    There is none where nothing is translated: for a text without a source, one language, or labels.
    """
    pair = (cost.get("source_language", "?"), cost.get("target_language", "?"))
    # ISO 639-2: "und" (undetermined) is the source of a text without one, "zxx" (no linguistic content) is labels.
    is_one_language = pair[0] == pair[1] != MANY_LANGUAGES
    if is_one_language or pair[0] == "und" or pair[1] == "zxx":
        return []
    pairs = list(dict.fromkeys([("en", "de"), ("en", "fr"), pair]))
    names = [f"{source}-{target}".upper() for source, target in pairs]
    blank = [""] * (len(pairs) - 2)
    rows = []
    for model, *bleu, flops_de, flops_fr in _PAPER_ROWS:
        flops = ["" if value is None else scientific(value) for value in (flops_de, flops_fr)]
        rows.append([model, *("" if value is None else f"{value:g}" for value in bleu), *blank, *flops, *blank])
    test, metric = cost.get("newstest2014"), _METRIC_OF_PAIR.get(pair)
    reached = scores.get(test, {}).get(metric) if test and metric else None
    for how, value in (("the paper's estimate", cost["flops_paper_estimate"]), ("counted", cost["flops"])):
        shown = f"{reached['score']:.2f}" if reached else ""
        cells = [shown if other == pair else "" for other in pairs]
        cells += [scientific(value) if other == pair else "" for other in pairs]
        rows.append([f"{cost.get('run', 'this run')}, {how}", *cells])
    notes = ["The paper's estimate is time x devices x sustained FLOP/s; counted are matrix products of real tokens."]
    others = [
        f"{name} {entry['score']:.2f} ({other})"
        for name, entries in scores.items()
        for other, entry in entries.items()
        if other in ("bleu-tokenized", "sacrebleu")
    ]
    if reached is not None:
        notes.append(f"BLEU of this run: {metric} on newstest2014.")
    elif others:
        on = "text other than the paper's newstest2014" if test is None else "languages or metrics not in the paper"
        notes.append(f"BLEU of this run, on {on}: {', '.join(others)}.")
    columns = ["model", *(f"BLEU {name}" for name in names), *(f"FLOPs {name}" for name in names)]
    return [Table(f"The paper's Table 2, and {what}", columns, rows, notes)]


def prediction_table(predicted: Mapping[str, Any]) -> Table:
    """Return what a training is expected to take, from the content of RUN/prediction.json, with all assumptions."""
    flops, padding, memory = predicted["flops"], predicted["flops_padding"], predicted["memory_bytes"]
    epochs = "" if predicted["epochs"] is None else f", {predicted['epochs']:.1f} epochs"
    where = f"{predicted['devices']} x {predicted['device']} ({predicted['precision']}){_processor(predicted)}"
    of_padding = "known once the data are prepared"
    if padding is not None:
        of_padding = f"{scientific(padding)} (+{percent(padding, flops)})"
    of_memory = f"{amount(memory)}B"
    if (room := predicted["device_memory_bytes"]) is not None:
        of_memory += f" of {amount(room)}B" + (": it does not fit" if memory > room else "")
    per_update = predicted["seconds"] / predicted["updates"]
    of_parts = [(part, predicted[key]) for part, key in _PARTS.items()]
    rows = [
        ["updates", f"{predicted['updates']:,} ({predicted['limit']}{epochs})"],
        [predicted.get("unit") or TARGET_TOKENS, f"{predicted['target_tokens']:,}"],
        ["parameters", f"{predicted['parameters']:,}"],
        ["FLOPs", f"{scientific(flops)} (forward a third, backward two)"],
        *([f"  {part}", f"{scientific(value)} ({percent(value, flops)})"] for part, value in of_parts),
        ["  additional, for padding", of_padding],
        ["time", f"{duration(predicted['seconds'])} on {where}"],
        ["  per update", f"{per_update:.3g} s"],
        ["  rate per device", f"{amount(predicted['rate'])}FLOP/s ({predicted['rate_source']})"],
        ["  share of that rate", f"{100 * predicted['mfu']:.0f} % ({predicted['mfu_source']})"],
        ["memory per device", f"{of_memory} ({predicted['memory_source']})"],
        ["tokens per micro-batch", f"{predicted['tokens_per_pass']:,}, including padding"],
    ]
    notes = [f"Lengths of the pairs: {predicted['lengths']}."]
    if per_update < _SHORTEST_UPDATE_SECONDS:
        notes.append(
            "Do not trust the time: so short an update is bound by what the estimate leaves out (starting operations, "
            "exchanging gradients, making batches), not by the device's rate."
        )
    return Table("Expected cost of the training", ["what", "value"], rows, notes)


def prediction_fared(cost: Mapping[str, Any]) -> Table:
    """Return what was predicted before the training, and its outcome."""
    predicted = cost["prediction"]
    updates = (predicted["updates"], cost["updates"])
    whole = cost["device_seconds"] * predicted["rate"]  # FLOPs of that time at the predicted rate
    rows = []
    for name, before, after in (
        ("updates", *updates),
        (cost.get("unit") or TARGET_TOKENS, predicted["target_tokens"], cost["target_tokens"]),
        ("FLOPs", predicted["flops"], cost["flops"]),
        ("FLOPs for padding", predicted["flops_padding"], cost["flops_padding"]),
        ("seconds", predicted["seconds"], cost["seconds"]),
        ("seconds per update", predicted["seconds"] / updates[0], cost["seconds"] / updates[1] if updates[1] else None),
        ("MFU", predicted["mfu"], cost["flops"] / whole if whole else None),
        ("memory, bytes", predicted["memory_bytes"], cost["memory_bytes"]),
    ):
        if before is not None:
            ratio = "" if after is None or not before else f"{after / before:.3f}"
            rows.append([name, _figure(before), _figure(after), ratio])
    notes = [f"MFU {predicted['mfu_source']}."]
    if cost["device"] == "cpu" and cost["memory_bytes"]:
        notes.append("Memory: peak resident size including validation, which the prediction leaves out.")
    if updates[1] < updates[0]:
        notes.append(f"Training ended before {predicted['limit']}, or has not ended: compare the figures per update.")
    elif updates[1] > updates[0] and predicted["limit"].startswith("max_steps"):  # epochs may differ in updates
        notes.append(f"Training went on after {predicted['limit']}, the limit then: compare the figures per update.")
    return Table("Prediction and outcome", ["what", "predicted", "outcome", "ratio"], rows, notes)


def _figure(value: float | int | None) -> str:
    return "" if value is None else f"{value:,.0f}" if 1000 <= value < 1e9 else f"{value:.4g}"


def scientific(value: float | int) -> str:
    """Return a large number in two digits: 3.3e18."""
    mantissa, exponent = f"{value:.1e}".split("e")  # Python writes 3.3e+18
    return f"{mantissa}e{int(exponent)}"


def percent(part: float | int, whole: float | int) -> str:
    """Return a share in percent with one decimal."""
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"
