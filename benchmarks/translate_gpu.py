"""Decoding speed on a GPU: sentences a second at several batch sizes, in turn with CTranslate2, by one command:

    python benchmarks/translate_gpu.py --output gpu-decoding.json

Models of the recipes' sizes with random weights translate made-up ids with source lengths like WMT14's (train_gpu.py
says which), by beam search to one fixed length, so that weights do not matter and systems are comparable. What is timed
is encoder and search, from ids to ids, in batches of like length, as `nmtkit translate` cuts them. Modes:

- eager: as `nmtkit translate` runs.
- compiled: the layers of the decoder, but for the writes to its caches, through torch.compile.
- graphs: the steps as CUDA graphs; compiled-graphs: the compiled steps so. decoding_modes.py says what both need of a
  batch. These three exist in this benchmark only.
- ctranslate2: the same weights, exported, in float16 (on a CPU in float32), searched in its own way. It has one step
  less: nmtkit computes the probability of the end symbol too.

Each system is built and warmed up, then all are measured in turn, round for round. One that fails is told, and the
others go on. The rates are of the whole search by the clock.

- parts: device time by torch.profiler over one batch (on a CPU: time of the operators). In graphs and where code is
  compiled, attention's products cannot be told from others.
- idle: 1 - the device time that the profiled batch needed for a token x the tokens/s measured without the profiler.
- memory: what the system holds, and the most that it needed on top; of CTranslate2 it is not known.
- same: translations that are those of the first system. 16 bits and random weights leave many near ties.

Goal on one H200: at least 0.7 x CTranslate2's sentences/s at 64 sentences a batch and more. Whether it is met is told,
for eager alone and for the best mode; the exit code is 0 either way. `--device cpu --models tiny` is a short try.
"""

import argparse
import copy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from decoding_modes import CompiledDecoder, GraphRecorder, Recordings, plain_stepper, record_operators
from device_time import MATRIX_KERNELS, MATRIX_PRODUCTS, device_time, synchronize
from train_gpu import VOCABULARY, attempt, environment, lengths, model_of, names, write_report

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.console import print_table, set_up
from nmtkit.data.batch import pad
from nmtkit.decoding.lengths import length_penalty
from nmtkit.decoding.search import SearchOptions, beam_search
from nmtkit.distributed.workers import choose_device
from nmtkit.errors import ModelError
from nmtkit.export import ctranslate2 as ctranslate2_export
from nmtkit.model.step_decoder import StepDecoder
from nmtkit.model.transformer import Transformer
from nmtkit.model_folder import LoadedModel
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES, UNK
from nmtkit.training.loss import compile_cost

DTYPES = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
MODES = ("eager", "compiled", "graphs", "compiled-graphs", "ctranslate2")
OF_IDS = {"text": "plain", "normalize": [], "source_language": "en", "target_language": "de"}
"""Settings of a tokenizer that is asked for no text."""
SEARCH = ("topk", "amax", "max_", "sort", "radix", "gather", "nonzero", "aten::cat", "masked_fill", "index_fill")
"""What operators and kernels that only the search has are called."""
GOAL, GOAL_FROM, GOAL_MODELS = 0.7, 64, ("base", "big")

BY_DEVICE = {
    "cuda": {"precisions": ["fp16"], "batch_sizes": [1, 16, 64, 256, 1024], "batches": 32},
    "cpu": {"precisions": ["float32"], "batch_sizes": [1, 8], "batches": 3},
}
"""What is measured where the command line does not say it."""

Ids = tuple[int, ...]
Batch = list[list[int]]


class System(Protocol):
    """What is measured."""

    warmups: int
    """Passes over all batches before the first round."""

    def begin(self) -> None:
        """Forgets what it keeps for the batches so far."""

    def translate(self, batches: Sequence[Batch]) -> list[Ids]:
        """The best translation of each source, without begin and end symbols."""
        ...


class Nmtkit:
    """nmtkit's search, in one of its modes."""

    def __init__(
        self,
        weights: Transformer,
        mode: str,
        dtype: torch.dtype | None,
        device: torch.device,
        options: argparse.Namespace,
    ) -> None:
        model = copy.deepcopy(weights).to(device)
        self._decoder = (CompiledDecoder if mode.startswith("compiled") else StepDecoder)(model, dtype)
        self._vocabulary = model.output_embedding.size(0)
        self._is_recorded = mode.endswith("graphs")
        self._device = device
        self._beam, self._length = options.beam, options.length
        # Of recordings: the first batch of a shape warms up, the second is recorded, the third is played.
        self.warmups = 3 if self._is_recorded else 2
        self.begin()

    def begin(self) -> None:
        """Forgets recordings."""
        self._stepper = partial(plain_stepper, self._decoder)
        if self._is_recorded:
            record = GraphRecorder() if self._device.type == "cuda" else record_operators
            self._stepper = Recordings(self._decoder, self._vocabulary, self._beam, record).stepper

    @torch.inference_mode()
    def translate(self, batches: Sequence[Batch]) -> list[Ids]:
        """The same search as the translator's, without rules but the one for the length."""
        found: list[Ids] = []
        for sources in batches:
            hypotheses = beam_search(
                self._stepper(
                    pad(sources, end=EOS).to(self._device), torch.tensor([len(source) + 1 for source in sources])
                ),
                [self._length] * len(sources),
                beam=self._beam,
                penalty=length_penalty("wu", 0.6),
                suppressed=(PAD, BOS, UNK),
                device=self._device,
                options=SearchOptions(min_tokens=self._length),
            )
            found.extend(of_sentence[0].ids for of_sentence in hypotheses)
        return found


class MadeUpPieces:
    """A vocabulary, as an export needs it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def piece(self, index: int) -> str:
        """One that no other id has."""
        return SPECIAL_PIECES[index] if index < len(SPECIAL_PIECES) else f"w{index}"


PROBE = """
import sys, torch, ctranslate2  # torch loads libraries of CUDA that CTranslate2 finds then
device, folder, compute_type = sys.argv[1:]
if device == "cuda" and not ctranslate2.get_cuda_device_count():
    sys.exit("it sees no CUDA device")
ctranslate2.Translator(folder, device=device, compute_type=compute_type).translate_batch([["w4"]])
"""


class CTranslate2:
    """CTranslate2 with the same weights, by its defaults but for beam and length."""

    warmups = 2

    def __init__(self, weights: Transformer, device: torch.device, folder: Path, options: argparse.Namespace) -> None:
        """Exports the weights and loads them.

        Raises:
            ModelError: CTranslate2 is not there, or cannot run here.
        """
        if find_spec("ctranslate2") is None:
            raise ModelError("it is not installed")
        import ctranslate2

        self._pieces = MadeUpPieces(weights.output_embedding.size(0))
        compute_type = "float16" if device.type == "cuda" else "float32"
        loaded = LoadedModel(weights, Tokenizer(OF_IDS, {"joint": self._pieces}), DecodingConfig(), {})
        ctranslate2_export.write(folder, loaded, compute_type)
        # In a process of its own first: libraries that do not fit can end a process without an exception.
        command = [sys.executable, "-c", PROBE, device.type, str(folder), compute_type]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            lines = tried.stderr.strip().splitlines() or [f"it ended with {tried.returncode}"]
            raise ModelError(f"it cannot run here ({lines[-1]})")
        self._translator = ctranslate2.Translator(
            str(folder),
            device=device.type,
            compute_type=compute_type,
            intra_threads=torch.get_num_threads() if device.type == "cpu" else 0,
        )
        self._options = {
            "beam_size": options.beam,
            "min_decoding_length": options.length,
            "max_decoding_length": options.length,
            "max_input_length": 0,
        }
        self._ids = {self._pieces.piece(index): index for index in range(len(self._pieces))}

    def begin(self) -> None:
        """It keeps nothing."""

    def translate(self, batches: Sequence[Batch]) -> list[Ids]:
        """All batches are handed over at once, so that it never waits for the next one."""
        waiting = [
            self._translator.translate_batch(
                [[self._pieces.piece(token) for token in source] for source in sources],
                asynchronous=True,
                **self._options,
            )
            for sources in batches
        ]
        pieces = [result.result().hypotheses[0] for results in waiting for result in results]
        return [tuple(self._ids[piece] for piece in of_sentence) for of_sentence in pieces]


def batches_of(size: int, vocabulary: int, options: argparse.Namespace) -> list[Batch]:
    """Batches of that many sentences, the longest sources first; the same each time."""
    random = np.random.default_rng(1)
    num_sentences = size * max(1, min(options.batches, options.sentences // size))
    source_lengths = sorted(lengths(num_sentences, random)[:, 0].tolist(), reverse=True)
    sources = [random.integers(4, vocabulary, length).tolist() for length in source_lengths]
    return [sources[start : start + size] for start in range(0, num_sentences, size)]


def warm_up(system: System, batches: Sequence[Batch], device: torch.device) -> dict[str, Any]:
    """Has a system do all batches a few times; what that cost, and its translations."""
    held = held_memory(device)
    pieces, compiling = compiled_so_far()
    begun = time.perf_counter()
    for _ in range(system.warmups):
        found = system.translate(batches)
    synchronize(device)
    seconds = time.perf_counter() - begun
    after, seconds_after = compiled_so_far()
    return {
        "warmup_seconds": seconds,
        "compiled_pieces": after - pieces,
        "compile_seconds": seconds_after - compiling,
        "held_bytes": held_memory(device) - held,
        "translations": found,
    }


def compiled_so_far() -> tuple[int, float]:
    """Pieces of code and seconds; torch's compiler, which is slow to load, is left alone where nothing uses it."""
    return compile_cost() if "torch._dynamo" in sys.modules else (0, 0.0)


def held_memory(device: torch.device) -> int:
    """Bytes of device memory that torch cannot give back; recordings' memory counts."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def time_round(system: System, batches: Sequence[Batch], device: torch.device, length: int) -> dict[str, Any]:
    """One pass over all batches by the clock, after one batch that is not timed."""
    on_cuda = device.type == "cuda"
    allocated = torch.cuda.memory_allocated(device) if on_cuda else 0
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    system.translate(batches[:1])
    synchronize(device)
    compiled, _ = compiled_so_far()
    begun = time.perf_counter()
    found = system.translate(batches)
    synchronize(device)
    seconds = time.perf_counter() - begun
    if wrong := [len(ids) for ids in found if len(ids) != length]:
        raise ValueError(f"{len(wrong)} translations do not have {length} tokens; one has {wrong[0]}")
    return {
        "seconds": seconds,
        "sentences": len(found),
        "compiled_pieces": compiled_so_far()[0] - compiled,
        "needed_bytes": torch.cuda.max_memory_allocated(device) - allocated if on_cuda else 0,
    }


def part_of(chain: str, kernel: str) -> str:
    """The part of decoding that a kernel belongs to, by the operators around it and by its name."""
    where, name = chain.lower(), kernel.lower()
    innermost = where.rsplit(" > ", 1)[-1]
    both = f"{where} > {name}"

    def has(text: str, *marks: str) -> bool:
        return any(mark in text for mark in marks)

    if has(both, "log_softmax", "logsoftmax"):
        return "log-probabilities"
    if has(both, "scaled_dot_product", "flash", "fmha", "sdpa", "efficient_attention", "bmm", "softmax"):
        return "attention"
    if has(innermost, *MATRIX_PRODUCTS) or has(name, *MATRIX_KERNELS):
        return "matrix products"
    if has(both, "embedding"):
        return "embeddings"
    if has(both, "index_select", "indexselect"):
        return "reordering of hypotheses"
    if has(both, *SEARCH):
        return "search"
    if has(name, "memcpy", "memset") or has(innermost, "aten::to", "aten::_to_copy", "aten::copy_", "aten::clone"):
        return "copies and casts"
    return "norms, elementwise"


class Measured:
    """One system at one batch size: what is known so far, and whether it can go on."""

    def __init__(self, system: System, labels: dict[str, Any], result: dict[str, Any]) -> None:
        self.system = system
        self.labels = labels
        self.result = {**labels, "rounds": [], **result}

    def take(self, what: str, found: dict[str, Any]) -> None:
        """Adds what a measurement gave; one that failed is the last."""
        if "error" in found:
            self.result["error"] = found["error"]
        elif what == "round":
            self.result["rounds"].append(found)
        else:
            self.result |= found

    @property
    def goes_on(self) -> bool:
        """Whether nothing has failed."""
        return "error" not in self.result


def measure(
    systems: dict[tuple[str, str], tuple[System, int]], model: str, size: int, device: torch.device,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:  # fmt: skip
    """All systems of a model at one batch size, in turn; results in the systems' order."""
    batches = batches_of(size, VOCABULARY[model], options)
    measured = []
    for (mode, precision), (system, weights_bytes) in systems.items():
        labels = {"model": model, "mode": mode, "precision": precision, "batch_size": size, "batches": len(batches)}
        one = Measured(system, labels, {"weights_bytes": weights_bytes})
        one.take("warm-up", tell(one.labels, lambda: warm_up(system, batches, device)))  # noqa: B023
        if not one.goes_on:
            system.begin()  # so that the others have its memory
        measured.append(one)
    for _ in range(options.rounds):
        for one in measured:
            if one.goes_on:
                work = partial(time_round, one.system, batches, device, options.length)
                one.take("round", tell(one.labels, work))
    middle = [batches[len(batches) // 2]]
    for one in measured:
        if one.goes_on and isinstance(one.system, Nmtkit):
            work = partial(profile, one.system, middle, device, options.length)
            one.take("parts", tell(one.labels, work))
        one.system.begin()
    summarize([one.result for one in measured], options.length)
    return [one.result for one in measured]


def tell(labels: dict[str, Any], work: Any) -> dict[str, Any]:
    """What a measurement returns, or what went wrong; compiled code stays for the next."""
    what = f"{labels['model']}, {labels['mode']}, {labels['precision']}, batch {labels['batch_size']}"
    return attempt(what, work, keeps_compiled=True)


def profile(system: System, batches: Sequence[Batch], device: torch.device, length: int) -> dict[str, Any]:
    """Where the device's time goes."""

    def work() -> int:
        return length * len(system.translate(batches))

    return {"parts": device_time(work, device, part_of)}


def summarize(results: list[dict[str, Any]], length: int) -> None:
    """Adds rates, idle time, ratios to CTranslate2, and how much is translated as by the first system."""
    first = next((result["translations"] for result in results if "translations" in result), [])
    for result in results:
        found = result.pop("translations", [])
        if found:
            result["same_translations"] = statistics.mean(a == b for a, b in zip(first, found, strict=True))
        if "error" in result:
            continue
        rates = [one["sentences"] / one["seconds"] for one in result["rounds"]]
        result["sentences_per_second"] = statistics.mean(rates)
        result["sentences_per_second_of_rounds"] = rates
        result["target_tokens_per_second"] = result["sentences_per_second"] * length
        result["compiled_while_measured"] = sum(one["compiled_pieces"] for one in result["rounds"])
        needed = max(one["needed_bytes"] for one in result["rounds"])
        is_known = result["mode"] != "ctranslate2"
        result["peak_memory_bytes"] = result["weights_bytes"] + result["held_bytes"] + needed if is_known else None
        if "parts" in result:
            busy = result["parts"]["device_seconds_per_token"] * result["target_tokens_per_second"]
            result["idle"] = max(0.0, 1 - busy)
    peer = next((r["sentences_per_second"] for r in results if r["mode"] == "ctranslate2" and "error" not in r), None)
    for result in results:
        if "error" not in result:
            result["to_ctranslate2"] = result["sentences_per_second"] / peer if peer else None


def build(
    model: str, device: torch.device, folder: Path, options: argparse.Namespace, notes: list[str]
) -> dict[tuple[str, str], tuple[System, int]]:
    """The systems of a model by mode and precision, with the bytes of their weights; what cannot be built is noted."""
    torch.manual_seed(1)
    weights = Transformer(model_of(model), VOCABULARY[model], VOCABULARY[model]).eval().requires_grad_(False)
    systems: dict[tuple[str, str], tuple[System, int]] = {}

    def add(mode: str, precision: str, make: Any) -> None:
        before = held_memory(device)
        found = attempt(f"{model}, {mode}, {precision}", lambda: {"system": make()}, keeps_compiled=True)
        if "error" in found:
            notes.append(found["error"])
        else:
            systems[mode, precision] = found["system"], held_memory(device) - before

    for precision in options.precisions:
        for mode in [mode for mode in options.modes if mode != "ctranslate2"]:
            add(mode, precision, partial(Nmtkit, weights, mode, DTYPES[precision], device, options))
    if "ctranslate2" in options.modes:
        try:
            precision = "fp16" if device.type == "cuda" else "float32"
            systems["ctranslate2", precision] = CTranslate2(weights, device, folder, options), 0
        except (ModelError, RuntimeError, ValueError) as error:
            notes.append(f"{model}: CTranslate2 is not measured: {' '.join(str(error).split())}")
    return systems


def main() -> None:
    options = parse()
    set_up()
    device = choose_device(options.device)
    for name, value in BY_DEVICE["cuda" if device.type == "cuda" else "cpu"].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if device.type == "cpu" and "fp16" in options.precisions:
        sys.exit("--precisions fp16: nmtkit computes in it on GPUs only; choose float32 or bf16")
    report: dict[str, Any] = {
        **environment(device, ",".join(options.precisions)),
        "options": vars(options) | {"output": None},
        "notes": [],
        "measurements": [],
    }
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            systems = build(model, device, Path(folder), options, report["notes"])
            for size in options.batch_sizes:
                report["measurements"] += measure(systems, model, size, device, options)
                write_report(options.output, report)
        systems.clear()
        attempt(model, dict)  # lets go of what was compiled for it
    report["goals"] = judge(report["measurements"], options.batch_sizes)
    write_report(options.output, report)
    show(report, options)


def judge(measurements: list[dict[str, Any]], batch_sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Says of each goal whether eager decoding in 16 bits meets it, and whether the best mode does."""
    goals = []
    for model in GOAL_MODELS:
        for size in [size for size in batch_sizes if size >= GOAL_FROM]:
            ratios = {
                (found["mode"], found["precision"]): found["to_ctranslate2"]
                for found in measurements
                if (found["model"], found["batch_size"]) == (model, size)
                and found["mode"] != "ctranslate2"
                and found["precision"] in ("fp16", "bf16")
                and found.get("to_ctranslate2") is not None
            }
            eager = max((ratio for (mode, _), ratio in ratios.items() if mode == "eager"), default=None)
            best = max(ratios, key=lambda key: ratios[key], default=None)
            goals.append({
                "goal": f"{model}, batch {size}: {GOAL:g} x CTranslate2",
                "eager": eager,
                "met": None if eager is None else eager >= GOAL,
                "best": ratios.get(best) if best else None,
                "best_mode": " ".join(best) if best else None,
                "met_by_best": None if best is None else ratios[best] >= GOAL,
            })  # fmt: skip
    return goals


def show(report: dict[str, Any], options: argparse.Namespace) -> None:
    """Prints the report as tables."""
    columns = ["model", "batch", "mode", "precision", "sentences/s of each round", "tokens/s", "to CTranslate2"]
    columns += ["idle %", "GiB", "compile s", "same %"]
    whole = [found for found in report["measurements"] if "error" not in found]
    title = f"beam {options.beam}, {options.length} tokens a translation, {report['hardware'].get('gpu', 'CPU')}"
    print_table(title, columns, [row_of(found) for found in whole])
    with_parts = [found for found in whole if "parts" in found]
    names_of_parts = sorted({part for found in with_parts for part in found["parts"]["shares"]})
    rows = [
        [found["model"], str(found["batch_size"]), found["mode"], found["precision"]]
        + [f"{100 * found['parts']['shares'].get(part, 0.0):.0f}" for part in names_of_parts]
        for found in with_parts
    ]
    print_table("% of device time", ["model", "batch", "mode", "precision", *names_of_parts], rows)
    notes = report["notes"] + [found["error"] for found in report["measurements"] if "error" in found]
    goals = [
        (goal["goal"], *outcome(goal["eager"], goal["met"]), *outcome(goal["best"], goal["met_by_best"]))
        + (goal["best_mode"] or "",)
        for goal in report["goals"]
    ]
    columns = ["goal", "eager", "met", "best mode", "met", "mode"]
    print_table("goals, stated for one H200 in 16 bits", columns, goals, notes=notes)


def row_of(found: dict[str, Any]) -> list[str]:
    """A measurement's row of the table."""
    memory, ratio = found["peak_memory_bytes"], found["to_ctranslate2"]
    return [
        found["model"],
        str(found["batch_size"]),
        found["mode"],
        found["precision"],
        " ".join(f"{rate:.1f}" for rate in found["sentences_per_second_of_rounds"]),
        f"{found['target_tokens_per_second']:,.0f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{100 * found['idle']:.0f}" if "idle" in found else "",
        "" if memory is None else f"{memory / 2**30:.1f}",
        f"{found['compile_seconds']:.0f}",
        f"{100 * found['same_translations']:.0f}",
    ]


def outcome(reached: float | None, met: bool | None) -> tuple[str, str]:
    """What was reached of a goal, and whether that meets it; open where it was not measured."""
    if reached is None:
        return "", "open"
    return f"{reached:.2f}", "yes" if met else "no"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def numbers(text: str) -> list[int]:
        found = [int(part) for part in text.split(",")]
        if min(found) < 1:
            raise argparse.ArgumentTypeError(f"{text}: numbers from 1 on")
        return found

    def number(text: str) -> int:
        return numbers(text)[0]

    parser.add_argument("--models", type=names(("base", "big", "tiny")), default="base,big")
    parser.add_argument("--modes", type=names(MODES), default=",".join(MODES))
    parser.add_argument("--precisions", type=names(tuple(DTYPES)), help="by default fp16, on a CPU float32")
    parser.add_argument("--batch-sizes", type=numbers, help="sentences; by default 1,16,64,256,1024, on a CPU 1,8")
    parser.add_argument("--beam", type=number, default=4)
    parser.add_argument("--length", type=number, default=30, help="tokens of each translation")
    parser.add_argument("--batches", type=number, help="most batches of a round; by default 32, on a CPU 3")
    parser.add_argument("--sentences", type=number, default=8192, help="most sentences of a round")
    parser.add_argument("--rounds", type=number, default=2)
    parser.add_argument("--device", default="auto", help="auto, cuda or cpu")
    parser.add_argument("--output", type=Path, help="a JSON file for all of it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
