"""A model's attention between a source and a target text, ready to be drawn.

texts (of a parser the tree, made its sequence) -> normalised -> ids -> one pass of the model, whose weights are kept
      -> AttentionMap of each kind
"""

import numpy as np

from nmtkit.console import counted
from nmtkit.data.batch import batch_of
from nmtkit.errors import DataError, ModelError
from nmtkit.model.attention_weights import attention_weights
from nmtkit.model_folder import LoadedModel
from nmtkit.reports.attention_page import KINDS, AttentionMap, Tokens
from nmtkit.tasks.known import task_of
from nmtkit.text.tokenizer import BOS, EOS, Side, Tokenizer

MAX_TOKENS = 128
"""Of a side: more are no picture any more, and a page's data grows with the square."""


def attention_maps(loaded: LoadedModel, source: str, target: str) -> list[AttentionMap]:
    """What the model attends to when it reads the source and writes the target: encoder, decoder, cross.

    The target of a parser is a tree in brackets, of which it writes the sequence. A row of the decoder stands for the
    position at which its token is written; the token written last is the newest one that it has read.

    Raises:
        DataError: a side is empty or too long, or the target of a parser is no tree.
        ModelError: the model gives no finite numbers.
    """
    tokenizer = loaded.tokenizer
    task = task_of(tokenizer)
    source, target = task.model_source(source), task.model_target(target, "the target")
    config = loaded.model.config
    limit = min(MAX_TOKENS, config.max_positions if config.positions == "learned" else MAX_TOKENS) - 1
    source_ids, target_ids = _ids(tokenizer, source, "source", limit), _ids(tokenizer, target, "target", limit)
    batch = batch_of([source_ids], [target_ids]).to(loaded.model.output_embedding.device)
    weights = attention_weights(loaded.model, batch.source, batch.target_in)
    if not bool(weights.cross.isfinite().all()):
        raise ModelError("the model's attention is not finite: its weights are damaged or its training diverged")
    read = _tokens(tokenizer, [*source_ids, EOS], "source")
    seen = _tokens(tokenizer, [BOS, *target_ids], "target")
    written = _tokens(tokenizer, [*target_ids, EOS], "target")
    sides = {"encoder": (read, read), "decoder": (written, seen), "cross": (written, read)}
    return [
        AttentionMap(kind, *sides[kind], getattr(weights, kind).double().cpu().numpy().astype(np.float64))
        for kind in KINDS
    ]


def _ids(tokenizer: Tokenizer, text: str, side: Side, limit: int) -> list[int]:
    ids = tokenizer.encode([tokenizer.normalize(text, side)], side, 1)[0]
    if not ids:
        raise DataError(f"the {side} is empty; attention needs text on both sides")
    if len(ids) > limit:
        raise DataError(
            f"the {side} has {counted(len(ids), 'token')}, and a picture of attention at most {limit}; "
            "give a shorter part"
        )
    return ids


def _tokens(tokenizer: Tokenizer, ids: list[int], side: Side) -> Tokens:
    """Pieces and words of ids that begin or end with a special symbol, which is a word of its own."""
    starts = tokenizer.word_starts(ids, side)
    begins = [
        index
        for index, start in enumerate(starts)
        if start or ids[index] in (BOS, EOS) or index == 0 or ids[index - 1] == BOS
    ]
    words = []
    for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
        word = ids[begin:end]
        words.append(tokenizer.decode(word, side) or "".join(tokenizer.pieces(word, side)))
    word_of = np.cumsum([index in begins for index in range(len(ids))]) - 1
    return Tokens(tuple(tokenizer.pieces(ids, side)), tuple(words), tuple(int(index) for index in word_of))
