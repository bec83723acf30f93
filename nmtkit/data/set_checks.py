"""Faults of validation and test sets, which are read as they are, and headers: `prepare` only warns of them."""

import locale
import math
import re
from collections import defaultdict

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.data_schema import DataConfig
from nmtkit.console import listed, log
from nmtkit.data.cleaning import BLANK_RULES, MEANINGS, PairExaminer, excerpt
from nmtkit.data.divergence import are_unrelated
from nmtkit.tasks.known import task_of
from nmtkit.text.leftovers import is_tokenized
from nmtkit.text.vocabulary import BLANK_SIGN, join_segments

ODD_SHARE = 0.02
"""Share of the pairs of a set above which they are mentioned; sets in use have a few odd lines."""
_COLUMN_NAMES = {"source", "src", "target", "tgt", "trg", "text", "sentence", "translation", "reference", "label", "id"}
_RULES_WARNED_OF = {"html_entity", "markup", "wrong_script", "swapped_sides", "wrong_language"}


def warn_of_odd_set(name: str, pairs: list[tuple[str, str]], data: DataConfig, cleaning: CleaningConfig) -> None:
    """Warn of pairs that may make validation or scores mean something else than they seem to.

    Args:
        name: the file of the targets, for messages.
        data: settings with the languages of the set.
    """
    task, examiner, lines = task_of(data), PairExaminer(data, cleaning, math.inf), defaultdict[str, list[int]](list)
    for number, pair in enumerate(pairs, start=1):
        for rule in examiner.broken_rules(*pair):
            lines[rule].append(number)
    if data.context:
        lines.pop("both_blank", None)  # they separate documents
    # Tokenisers write some characters as entities.
    warned_of = _RULES_WARNED_OF - ({"html_entity"} if data.text == "tokenized" else set())
    if task.own_metric is not None:  # the targets are no running text
        warned_of = set()
    for rule, numbers in lines.items():
        if rule in BLANK_RULES or (rule in warned_of and len(numbers) > ODD_SHARE * len(pairs)):
            log.warning("%s: %s (%s)", name, MEANINGS[rule], listed(numbers))
    if task.own_metric is not None or task.unrelated_target:
        return
    if are_unrelated([len(source) for source, _ in pairs], [len(target) for _, target in pairs]):
        log.warning(
            "%s: the lengths of the two sides are unrelated; they may not be each other's translation: see that they "
            "are files of the same set, and that no line is missing or added on one side", name
        )  # fmt: skip
    mark = data.segment_mark if data.subwords == "none" else ""
    if data.text == "plain" and is_tokenized([join_segments(target, mark) for _, target in pairs]):
        log.warning(
            '%s: punctuation is split off as a tokeniser does; if that is meant, state data.text = "tokenized", else '
            "BLEU scores are not comparable", name
        )  # fmt: skip


def warn_of_first_pair(name: str, pair: tuple[str, str], data: DataConfig) -> None:
    """Warn if the first pair of a corpus or set looks like names of columns or pieces, or one side like no text.

    Args:
        name: the file of the sources, for the message.
        data: settings with the languages of the pair.
    """
    # Python's table of locales also has names of languages, such as "german".
    languages = {alias for alias in locale.locale_alias if len(alias) > 3}
    names = {*_COLUMN_NAMES, *languages, data.source_language, data.target_language}
    if task_of(data).has_source and names.intersection(line.strip().lower() for line in pair):
        log.warning(
            "%s, line 1: %s looks like a header, but is read as a pair; if it is one, delete this line of the file",
            name, " and ".join(repr(excerpt(line)) for line in dict.fromkeys(pair)),
        )  # fmt: skip
    is_joined = data.subwords == "none" and data.segment_mark == BLANK_SIGN
    if not is_joined and re.search(rf"(^| ){BLANK_SIGN}[^\W_]", "\n".join(pair), re.MULTILINE):
        log.warning(
            "%s, line 1: a word begins with %s, as pieces of sentencepiece do; give plain text, or state "
            'data.subwords = "none" and data.segment_mark = "%s", by which pieces are joined again',
            name, BLANK_SIGN, BLANK_SIGN,
        )  # fmt: skip
    bare = [line for line in pair if line.strip() and not any(map(str.isalpha, line))]
    has_letters = any(map(str.isalpha, "".join(pair)))
    if task_of(data).has_source and not data.has_labels and has_letters and len(bare) == 1:
        log.warning(
            "%s, line 1: %r has no letters, but its counterpart has; if that side is no text, state another file, or "
            "the columns of a table as source_column and target_column", name, excerpt(bare[0]),
        )  # fmt: skip
