"""The output of `nmtkit translate` for a line: text, an n-best list or JSON; and the status of a translation."""

import re
from collections.abc import Sequence
from typing import Any, Literal

from nmtkit.decoding.request import Translation
from nmtkit.json_toml import json_line
from nmtkit.text.leftovers import leftovers

OutputFormat = Literal["text", "n-best", "json", "pairs"]

_REPEATED = re.compile(r"(?<!\S)(\S+( \S+){0,3})( \1){2}(?!\S)")
"""One to four words that occur three times in a row."""


def format_output(
    output: OutputFormat, line: int, source: str, translations: Sequence[Translation], *, is_number: bool = False
) -> list[str]:
    """Return the lines of output for one line of input; ``line`` is its number, from 1.

    text: the best translation. n-best: for each translation `LINE ||| TEXT ||| log_prob=X ||| SCORE`, the format of
    Moses. json: one object with all fields. pairs: for each translation its line, 1 if the maximum length ended it, and
    text, with tabs between them (data/generated.py). is_number: labels are numbers; the value of an empty line is null.
    """
    if output == "json" and (probabilities := translations[0].probabilities) is not None:
        text = translations[0].text
        label = {"value": float(text) if text else None} if is_number else {"label": text}
        return [json_line({"line": line, "source": source, **label, "probabilities": probabilities})]
    if output == "text":
        return [translations[0].text]
    if output == "pairs":
        return [f"{line}\t{int(one.hit_limit)}\t{one.text}" for one in translations]
    if output == "n-best":
        return [f"{line} ||| {one.text} ||| log_prob={one.log_prob:.6f} ||| {one.score:.6f}" for one in translations]
    hypotheses = []
    for one in translations:
        hypothesis: dict[str, Any] = {
            "text": one.text,
            "score": one.score,
            "log_prob": one.log_prob,
            "tokens": list(one.pieces),
            "token_log_probs": list(one.token_log_probs),
        }
        if one.missing:
            hypothesis["missing"] = list(one.missing)
        if one.alignment is not None:
            hypothesis["alignment"] = [[target, source] for target, source in enumerate(one.alignment)]
        hypotheses.append(hypothesis)
    content: dict[str, Any] = {"line": line, "source": source}
    if translations[0].source_pieces is not None:
        content["source_tokens"] = list(translations[0].source_pieces)
    return [json_line({**content, "hypotheses": hypotheses})]


def line_status(source: str, best: Translation, *, invalid_utf8: bool) -> list[str]:
    """Return remarks on a line and its best translation; ["ok"] if there are none.

    empty: the source or the translation has no text. invalid_utf8: bytes of the line were replaced. split: the source
    was translated in segments, as it was too long or has several sentences. cut: only the first tokens of the source
    were read. unknown: at least half of the tokens of the source, or of a segment, are `<unk>`. length_limit: the
    translation was ended by the maximum length. short: the translation, or that of a segment, has less than a third of
    the tokens predicted by the length ratio of the training pairs, or none though the source has words. unmet: the
    requested prefix, a required phrase, a term or a kept span is missing. copied_source: the translation equals the
    source. repeats: a sequence of up to four words occurs three times in a row. leftover: the translation contains
    markup, entities or subword marks that the source does not.
    mended (for trees, instead of the last three): the output of the model was no tree over the words and was repaired.
    """
    words = best.text.split()
    is_text = best.is_mended is None
    has_repeats = _REPEATED.search(" ".join(words)) is not None
    status = {
        "empty": not words,
        "invalid_utf8": invalid_utf8,
        "split": best.parts > 1,
        "cut": best.is_cut,
        "unknown": best.is_unknown,
        "length_limit": best.hit_limit,
        "short": best.is_short or bool(source.split() and not words),
        "unmet": best.is_unsatisfied,
        "copied_source": is_text and bool(words) and words == source.split(),
        "repeats": is_text and has_repeats and not _REPEATED.search(" ".join(source.split())),
        "leftover": is_text and bool(leftovers(best.text).keys() - leftovers(source).keys()),
        "mended": bool(best.is_mended),
    }
    return [name for name, applies in status.items() if applies] or ["ok"]
