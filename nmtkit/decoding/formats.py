"""What `nmtkit translate` writes for a line: text, an n-best list or JSON; and what is odd about a translation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from nmtkit.files import json_line
from nmtkit.text.leftovers import leftovers

if TYPE_CHECKING:  # not when it runs: an engine without torch writes text, too
    from nmtkit.decoding.translator import Translation

OutputFormat = Literal["text", "n-best", "json"]

_LONGEST_REPEATED_WORDS = 4
_REPETITIONS = 3


def written(output: OutputFormat, line: int, source: str, found: "Sequence[Translation]") -> list[str]:
    """The lines of output for one line of input, of which ``line`` is the number, from 1.

    text: the best translation. n-best: for each translation `LINE ||| TEXT ||| log_prob=X ||| SCORE`, as Moses and its
    rescoring tools have it. json: one object with all that is known.
    """
    if output == "text":
        return [found[0].text]
    if output == "n-best":
        return [f"{line} ||| {one.text} ||| log_prob={one.log_prob:.6f} ||| {one.score:.6f}" for one in found]
    content: dict[str, Any] = {"line": line, "source": source}
    if found[0].source_pieces is not None:
        content["source_tokens"] = list(found[0].source_pieces)
    return [json_line({**content, "hypotheses": [_as_json(one) for one in found]}).rstrip("\n")]


def _as_json(translation: "Translation") -> dict[str, Any]:
    content: dict[str, Any] = {
        "text": translation.text,
        "score": translation.score,
        "log_prob": translation.log_prob,
        "tokens": list(translation.pieces),
        "token_log_probs": list(translation.token_log_probs),
    }
    if translation.alignment is not None:
        content["alignment"] = [[target, source] for target, source in enumerate(translation.alignment)]
    return content


def oddities(source: str, best: "Translation", *, invalid_utf8: bool) -> list[str]:
    """What somebody should know of a line and its translation; ["ok"] for nothing.

    empty: there is no text to translate, or none came of it. invalid_utf8: bytes of the line were replaced. split: the
    source was too long and was translated in parts. length_limit: the translation was ended by the maximum length.
    short: it, or a part of it, has less than a third of the tokens that the training pairs' length ratio predicts.
    unmet: it does not begin as asked for, or lacks a required phrase. copied_source: it is the source. repeats: up to
    four words stand in it three times in a row. leftover: it holds markup, entities or subword marks that the source
    does not. mended (of trees, instead of these three): what the model said was no tree over the words.
    """
    is_text = best.is_mended is None
    found = {
        "empty": not best.text.strip(),
        "invalid_utf8": invalid_utf8,
        "split": best.parts > 1,
        "length_limit": best.hit_limit,
        "short": best.is_short and bool(best.text.strip()),
        "unmet": best.is_unmet,
        "copied_source": is_text and bool(best.text.strip()) and best.text.split() == source.split(),
        "repeats": is_text and _repeats(best.text.split()) and not _repeats(source.split()),
        "leftover": is_text and bool(leftovers(best.text).keys() - leftovers(source).keys()),
        "mended": bool(best.is_mended),
    }
    return [name for name, is_so in found.items() if is_so] or ["ok"]


def _repeats(words: Sequence[str]) -> bool:
    """Whether some words stand several times in a row."""
    for size in range(1, _LONGEST_REPEATED_WORDS + 1):
        equal = 0  # words in a row that are the same as ``size`` words before
        for place in range(size, len(words)):
            equal = equal + 1 if words[place] == words[place - size] else 0
            if equal == size * (_REPETITIONS - 1):
                return True
    return False
