"""What subwords are learned from, what memory that takes, and what they bring back.

training text --sample_pairs--> pairs at even steps --normalisation--> Tokenizer.learn
              --lines_that_come_back--> how many sampled target lines are the same after cutting and joining
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmtkit.config.schema import DataConfig
from nmtkit.console import log
from nmtkit.data.training_text import TrainingText
from nmtkit.errors import DataError
from nmtkit.text.normalization import Normalization
from nmtkit.text.tokenizer import UNK, Tokenizer, join_segments

BYTES_OF_MEMORY = {"bpe": 12, "unigram": 23, "wordpiece": 8, "none": 3}
"""What learning takes for each byte of the sample, as measured on 3 MB of text; less on more, but for unigram."""
_CONTAINER = Path("/sys/fs/cgroup")
"""Where a container states its limits."""
ROUND_TRIP_LINES = 10_000
"""Target lines, at even steps through the training text, that are cut and joined again."""


@dataclass(frozen=True)
class Sample:
    """The pairs that subwords are learned from.

    Attributes:
        pairs: how many.
        of: pairs of training text there are.
        text_bytes: of both sides, about.
        memory_bytes: that learning takes, about.
    """

    pairs: int
    of: int
    text_bytes: int
    memory_bytes: int


def plan_sample(text: TrainingText, data: DataConfig) -> Sample:
    """How large the sample is and what learning from it takes.

    Raises:
        DataError: the machine has less memory left.
    """
    total = len(text)
    pairs = min(total, data.subword_sample_pairs)
    text_bytes = sum(path.stat().st_size for path in text.paths) * pairs // max(1, total)
    sample = Sample(pairs, total, text_bytes, text_bytes * BYTES_OF_MEMORY[data.subwords])
    available = available_bytes()
    if available is not None and sample.memory_bytes > available:
        fitting = pairs * available // sample.memory_bytes
        raise DataError(
            f"learning subwords from {pairs:,} pairs takes about {sample.memory_bytes / 1e9:.1f} GB of memory, and "
            f"{available / 1e9:.1f} GB are free; use a smaller sample, such as --set data.subword_sample_pairs="
            f"{max(1, fitting * 8 // 10)}"
        )
    return sample


def sample_pairs(text: TrainingText, count: int) -> Iterator[tuple[str, str]]:
    """Exactly ``count`` pairs at even steps through all training text; all of it where it has no more."""
    total = len(text)
    for place, (_, source, target) in enumerate(text.pairs()):
        if place * count % total < count:
            yield source, target


def learn_subwords(text: TrainingText, data: DataConfig) -> tuple[Tokenizer, dict[str, Any]]:
    """Learns the subwords of a recipe from its training text.

    Returns:
        The tokenizer, and what the manifest says of the sample.

    Raises:
        DataError: the machine has too little memory.
        RecipeError: the text cannot give a vocabulary of that size.
    """
    sample = plan_sample(text, data)
    log.info(
        "learning subwords (%s, %s entries) from %s of %s pairs, %.1f MB; this takes about %.2f GB of memory",
        data.subwords, f"{data.vocab_size:,}", f"{sample.pairs:,}", f"{sample.of:,}", sample.text_bytes / 1e6,
        sample.memory_bytes / 1e9,
    )  # fmt: skip
    source, target = (Normalization(data.normalize, name) for name in (data.source_language, data.target_language))
    tokenizer = Tokenizer.learn(
        data, lambda: ((source(one), target(other)) for one, other in sample_pairs(text, sample.pairs))
    )
    return tokenizer, {
        "pairs": sample.pairs,
        "of": sample.of,
        "text_bytes": sample.text_bytes,
        "memory_bytes_estimated": sample.memory_bytes,
    }


def lines_that_come_back(text: TrainingText, tokenizer: Tokenizer) -> dict[str, Any]:
    """Cuts and joins a sample of target lines, and says how many are what they were after the stated normalisation.

    Returns:
        `lines` looked at, `changed` of them, `unknown` of those for a character or piece without an entry.
    """
    normalization, settings = tokenizer.normalization("target"), tokenizer.settings
    looked_at = changed = unknown = 0
    for _, line in sample_pairs(text, min(len(text), ROUND_TRIP_LINES)):
        (ids,) = tokenizer.encode([normalization(line)], "target")
        expected = normalization.expected(line)
        if settings["subwords"] == "none":
            expected = join_segments(expected, settings["segment_mark"])
        looked_at += 1
        if tokenizer.translation(ids) != expected:
            changed += 1
            unknown += UNK in ids
    if changed:
        log.info(
            "%.2f %% of %s sampled target lines change when cut into subwords and joined again (%s because a character "
            "has no entry in the vocabulary)",
            100 * changed / looked_at, f"{looked_at:,}", f"{unknown:,}",
        )  # fmt: skip
    return {"lines": looked_at, "changed": changed, "unknown": unknown}


def available_bytes() -> int | None:
    """Memory that this process may still take, by the system's count and its container's limit; None if not known."""
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    limit, used, kinds = (_CONTAINER / name for name in ("memory.max", "memory.current", "memory.stat"))
    if limit.is_file() and used.is_file() and limit.read_text(encoding="ascii").strip() != "max":
        lines = dict(line.split() for line in kinds.read_text(encoding="ascii").splitlines()) if kinds.is_file() else {}
        # Files that were read count as used until somebody needs the memory: a large corpus fills it.
        cached = int(lines.get("inactive_file", 0)) + int(lines.get("active_file", 0))
        found.append(int(limit.read_text(encoding="ascii")) - int(used.read_text(encoding="ascii")) + cached)
    return max(0, min(found)) if found else None
