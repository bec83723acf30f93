"""Learning subwords from a sample of the training text that fits into memory."""

from collections.abc import Iterator

from nmtkit.config.data_schema import DataConfig
from nmtkit.console import counted, log
from nmtkit.data.training_text import TrainingText
from nmtkit.distributed.limits import available_bytes
from nmtkit.errors import DataError
from nmtkit.tasks.known import task_of
from nmtkit.text.new_tokenizers import learn_tokenizer
from nmtkit.text.normalization import Normalization
from nmtkit.text.tokenizer import Tokenizer

BYTES_OF_MEMORY = {"bpe": 12, "unigram": 23, "characters": 12, "wordpiece": 8, "none": 3}
"""Bytes of memory per byte of the sample, measured on 3 MB of text; larger texts take less, except for unigram."""


def learn_subwords(text: TrainingText, data: DataConfig) -> tuple[Tokenizer, dict[str, int]]:
    """Learn the subwords of a recipe from evenly spaced pairs of its training text.

    Returns:
        The tokenizer, and the sizes of the sample for the manifest.

    Raises:
        DataError: the machine has too little memory.
        RecipeError: the text is too small for a vocabulary of the requested size.
    """
    total = len(text)
    pairs, noun = min(total, data.subword_sample_pairs), task_of(data).example
    text_bytes = sum(path.stat().st_size for path in text.paths) * pairs // max(1, total)
    memory_bytes = text_bytes * BYTES_OF_MEMORY[data.subwords]
    available = available_bytes()
    if available is not None and memory_bytes > available:
        fitting = pairs * available // memory_bytes
        raise DataError(
            f"learning subwords from {counted(pairs, noun)} takes about {memory_bytes / 1e9:.1f} GB of memory, and "
            f"{available / 1e9:.1f} GB are free; use a smaller sample, such as --set data.subword_sample_pairs="
            f"{max(1, fitting * 8 // 10)}"
        )
    log.info(
        "learning subwords (%s, %s entries) from %s of %s, %.1f MB; this takes about %.2f GB of memory",
        data.subwords, f"{data.vocab_size:,}", f"{pairs:,}", counted(total, noun), text_bytes / 1e6, memory_bytes / 1e9,
    )  # fmt: skip
    normalizations = [
        [Normalization(data.normalize, language) for language in data.direction(entry)] for entry in data.train
    ]

    def sample() -> Iterator[tuple[str, str]]:
        everything = ((block.corpus, *pair) for block in text.blocks() for pair in block.pairs())
        for index, (corpus, _, source, target) in enumerate(everything):
            # True for `pairs` evenly spaced indices.
            if index * pairs % total < pairs:
                normalize_source, normalize_target = normalizations[corpus]
                yield normalize_source(source), normalize_target(target)

    return learn_tokenizer(data, sample), {
        "pairs": pairs,
        "of": total,
        "text_bytes": text_bytes,
        "memory_bytes_estimated": memory_bytes,
    }
