"""Scores of translations, each with a signature that states exactly what was compared.

    hypotheses, references --processing of the metric--> lines --sacreBLEU--> {metric: Score}

A metric reads the text in one of four forms:

    form        metrics                                  from plain text                      from tokenised text
    plain       sacrebleu (-lc, -intl), chrf2(++), ter   as it is                             Moses detokeniser
    tokens      bleu-tokenized, bleu-tokenized-lc        Moses tokeniser                      as it is
    compounds   bleu-compound-split                      punctuation, Moses, split compounds  split compounds
    as it is    rouge1, rouge2, rougeL, rougeLsum        as it is                             as it is

sacreBLEU computes all but ROUGE. A task whose output is no running text has a metric of its own instead; see
metric_names.py, which also says what each score compares with.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nmtkit.console import counted
from nmtkit.errors import DataError
from nmtkit.evaluation.metric_names import FORMS, METRICS, Form, left_out, require_known, task_metric, task_metric_with
from nmtkit.evaluation.rouge import ROUGE_METRICS, Rouge
from nmtkit.evaluation.scores import Interval, Score
from nmtkit.tasks.known import task_of
from nmtkit.text import moses
from nmtkit.text.scripts import bleu_tokenizer
from nmtkit.versions import package_version, release

if TYPE_CHECKING:  # imported on first use, so that commands that score nothing start without them
    import numpy as np
    from sacrebleu.metrics.base import Metric, Signature

RESAMPLES = 1000
"""Resamples of the bootstrap that gives a confidence interval, as in sacreBLEU."""
MOST_LINES_RESAMPLED = 10_000
"""Longer texts have intervals only on request, as they take minutes."""
_MOST_COUNTED = 200_000
"""Characters of sentences whose n-grams are kept, about 0.7 kB each, in `sentence_utility`."""
LINES_AT_ONCE = 10_000
"""Lines whose n-grams are in memory together: sacreBLEU keeps those of all references, 50 kB per line of 20 words."""

_Counts = Sequence[Sequence[int | float]]


class Scorer:
    """One or more references, ready to score any number of systems.

    Each form of the references is made once; of short texts, their n-grams are counted once for each metric, too.
    """

    def __init__(
        self,
        references: Sequence[list[str]],
        *,
        target_language: str | None,
        text: str,
        test_set: tuple[str, str] | None = None,
        tokenizer: str | None = None,
        rouge: Rouge | None = None,
    ) -> None:
        """Args:
        references: one list of lines for each set of references, all of the same length.
        target_language: selects the Moses rules, e.g. ``de``; without it nothing that needs Moses is computed.
        text: a value of ``data.text``: ``plain``, or ``tokenized`` where all text is already split into words, ...
        test_set: name and language pair for the signature, where the references are a test set of sacreBLEU.
        tokenizer: sacreBLEU's for BLEU of plain text; by default that of the target language.
        rouge: the settings of ROUGE, by default those of Rouge.

        Raises:
            DataError: there are no references or no lines, or the line counts differ.
            TypeError: the references are not lists of lines.
            RecipeError: ``text`` is neither a value of ``data.text`` nor the name of a task.
        """
        if isinstance(references, str) or any(isinstance(lines, str) for lines in references):
            raise TypeError("references are lists of lines, one list for each set of references")
        task_of(text)  # an unknown kind of text is an error here
        if not references:
            raise DataError("there is no reference; give at least one")
        for number, lines in enumerate(references[1:], start=2):
            if len(lines) != len(references[0]):
                raise DataError(
                    f"reference 1 has {counted(len(references[0]), 'line')} and reference {number} has "
                    f"{len(lines)}: see that the two belong together and that neither is cut short"
                )
        self.references = [list(lines) for lines in references]
        self.target_language = target_language
        self.text = text
        self._tokenizer = tokenizer or bleu_tokenizer(target_language or "")
        self._rouge = rouge or Rouge()
        self._test_set = test_set
        self._references_in_form: dict[Form, list[list[str]]] = {}
        self._metrics: dict[str, Metric] = {}

    def score(
        self, hypotheses: list[str], metrics: Sequence[str] | None = None, *, resamples: int = 0
    ) -> dict[str, Score]:
        """Score one system.

        Args:
            hypotheses: as many lines as the references have; a line may be empty.
            metrics: names from METRICS or ON_REQUEST, by default all of METRICS that are possible (see ``left_out``);
                or one of TASK_METRICS alone, the default of trees.
            resamples: number of bootstrap resamples for the confidence intervals; 0: none.

        Raises:
            DataError: there are no lines, the line counts differ, or a metric is unknown or impossible.
        """
        self.check_lines(hypotheses)
        names = self.possible(metrics)
        if (own := task_metric(self.text, metrics)) is not None:
            scores = {name: Score(*entry) for name, entry in own.scores(self.references[0], hypotheses).items()}
            if resamples > 1:
                counts = own.counts(self.references[0], hypotheses)
                for name in own.tested_on(self.references[0]):
                    interval = _interval(self.metric(name), counts, resamples)
                    scores[name] = dataclasses.replace(scores[name], interval=interval)
            return scores
        lines = {form: self._in_form(form, hypotheses) for form in dict.fromkeys(FORMS[name] for name in names)}
        return {name: self._measure(name, lines[FORMS[name]], resamples) for name in names}

    def sentence_scores(self, hypotheses: list[str], metrics: Sequence[str] | None = None) -> list[dict[str, float]]:
        """Return the score of each line by itself, by each metric.

        BLEU of a line takes the orders that the line has (``eff:yes``); their mean is not BLEU of the text.

        Raises:
            DataError: as ``score``.
        """
        self.check_lines(hypotheses)
        names = self.possible(metrics)
        if (own := task_metric(self.text, metrics)) is not None:
            return own.line_scores(self.references[0], hypotheses)
        scores: list[dict[str, float]] = [{} for _ in hypotheses]
        for name in names:
            # Not the metric of the whole text, whose scores BLEU's effective order would change.
            metric = _build(name, None, self._tokenizer, self._rouge, of_sentences=True)
            lines, references = self.in_form_of(name, hypotheses), self._of_references(FORMS[name])
            for of_line, line, *line_references in zip(scores, lines, *references, strict=True):
                of_line[name] = float(metric.sentence_score(line, line_references).score)
        return scores

    def sentence_quality(self, hypotheses: list[str], metrics: Sequence[str] | None = None) -> tuple[str, list[float]]:
        """Return the name of the score that ranks sentences, and that score of each line.

        It is chrF2, as BLEU is 0 without a common phrase, or the first of one of TASK_METRICS.
        """
        own = task_metric(self.text, metrics)
        scores = self.sentence_scores(hypotheses, [own.name if own else "chrf2"])
        name = next(iter(scores[0]))
        return name, [of_line[name] for of_line in scores]

    def in_form_of(self, metric: str, lines: list[str]) -> list[str]:
        """Return the text as a metric reads it."""
        return self._in_form(FORMS.get(metric, "as it is"), lines)

    def metric(self, name: str) -> "Metric":
        """Return sacreBLEU's metric of that name, or a tested score of TASK_METRICS in its place, with references."""
        if name not in self._metrics:
            references = self._of_references(FORMS.get(name, "as it is"))
            self._metrics[name] = _build(name, references, self._tokenizer, self._rouge)
        return self._metrics[name]

    def signature(self, name: str, of_metric: "Signature") -> str:
        """Return sacreBLEU's signature of a metric, with what was done to the text before."""
        if self._test_set is not None:
            test, languages = self._test_set
            of_metric.update("test", test)
            of_metric.update("lang", languages)
        own = task_metric_with(name)
        if own is not None or name in ROUGE_METRICS:
            of_metric.update("version", f"nmtkit-{release()}")  # not sacreBLEU's, which does not compute them
        if own is not None:
            return f"{own.signature(self.references[0])}|{of_metric.format()}"
        if name in ROUGE_METRICS:
            return f"{self._rouge.signature(name)}|{of_metric.format()}"
        _, label = _processing(FORMS[name], self.text, self.target_language)
        return f"{of_metric.format()}|text:{label}" if label else of_metric.format()

    def possible(self, metrics: Sequence[str] | None) -> list[str]:
        """Return the given metrics, each once; by default all of METRICS that are possible, or a task's own.

        Raises:
            DataError: one is unknown, or impossible on this text.
            TypeError: a string instead of a list of names.
        """
        if isinstance(metrics, str):
            raise TypeError("metrics are a list of names, not a string")
        own = task_metric(self.text, metrics)
        if own is not None:
            if metrics is not None and set(metrics) != {own.name}:
                raise DataError(f"{own.name} cannot be combined with other metrics; give it as the only metric")
            if len(self.references) > 1:
                raise DataError(f"{own.name} compares with one reference per line; give a single reference")
            return [own.name]
        impossible = left_out(target_language=self.target_language, text=self.text)
        if metrics is None:
            return [name for name in METRICS if name not in impossible]
        for name in metrics:
            require_known(name)
            if name in impossible:
                raise DataError(f"{name} cannot be computed: {impossible[name]}")
        return list(dict.fromkeys(metrics))

    def tested(self, metrics: Sequence[str] | None) -> list[str]:
        """Return the scores that paired tests compare: those of `possible`, or the scores of one of TASK_METRICS."""
        names = self.possible(metrics)
        own = task_metric(self.text, names)
        return names if own is None else list(own.tested_on(self.references[0]))

    def check_lines(self, hypotheses: list[str]) -> None:
        """Raise DataError where a system has no lines, or not as many as the references; TypeError for a string."""
        if isinstance(hypotheses, str):
            raise TypeError("hypotheses are a list of lines, not a string")
        if len(hypotheses) != len(self.references[0]):
            raise DataError(
                f"the hypotheses have {counted(len(hypotheses), 'line')} and the references {len(self.references[0])}: "
                "see that the two belong together and that neither is cut short"
            )
        if not hypotheses:
            raise DataError(
                "hypotheses and references have no lines: there is nothing to score; see that the files are right"
            )

    def _in_form(self, form: Form, lines: list[str]) -> list[str]:
        process, _ = _processing(form, self.text, self.target_language)
        return process(lines)

    def _of_references(self, form: Form) -> list[list[str]]:
        if form not in self._references_in_form:
            self._references_in_form[form] = [self._in_form(form, lines) for lines in self.references]
        return self._references_in_form[form]

    def statistics(self, name: str, lines: list[str]) -> tuple["Metric", list[Any]]:
        """Return a metric and the counts of each line of text in its form, of which it computes the score."""
        statistics: list[Any] = []
        # The counts of a task's own metric, such as those of classes or ranks, depend on the whole text.
        at_once = LINES_AT_ONCE if task_metric_with(name) is None else max(1, len(lines))
        for start in range(0, len(lines), at_once):
            part = slice(start, start + at_once)
            if len(lines) <= at_once:
                # Kept for further systems, as it holds the counted n-grams of the references.
                metric = self.metric(name)
            else:
                references = [of_set[part] for of_set in self._of_references(FORMS.get(name, "as it is"))]
                metric = _build(name, references, self._tokenizer, self._rouge)
            statistics += metric._extract_corpus_statistics(lines[part], None)  # None: the references of the metric
        return metric, statistics

    def _measure(self, name: str, lines: list[str], resamples: int) -> Score:
        metric, statistics = self.statistics(name, lines)
        result = metric._aggregate_and_compute(statistics)
        interval = _interval(metric, statistics, resamples) if resamples > 1 else None
        details = ""
        if result.name == "BLEU":
            details = (
                f"{result.prec_str} (BP = {result.bp:.3f} ratio = {result.ratio:.3f} "
                f"hyp_len = {result.sys_len} ref_len = {result.ref_len})"
            )
        return Score(float(result.score), self.signature(name, metric.get_signature()), details, interval)


class _OwnMetric:
    """A metric of our own, with the methods of sacreBLEU's Metric that its bootstrap and tests call.

    Not a subclass, as sacreBLEU is imported late.
    """

    def __init__(
        self,
        name: str,
        references: Sequence[Sequence[str]] | None,
        counts: Callable[[Sequence[Sequence[str]], Sequence[str]], _Counts],  # of references and hypotheses, per line
        value: Callable[[Sequence[float]], float],  # the score, from the sums of the counts of all lines
    ) -> None:
        self._name, self._references, self._counts, self._value = name, references, counts, value

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: None) -> _Counts:
        assert self._references is not None
        return self._counts(self._references, hypotheses)

    def _aggregate_and_compute(self, statistics: Iterable[Iterable[Any]]) -> Any:
        return self._compute_score_from_stats([sum(counts) for counts in zip(*statistics, strict=True)])

    def _compute_score_from_stats(self, statistics: Iterable[Any]) -> Any:
        from sacrebleu.metrics.base import Score as SacrebleuScore

        return SacrebleuScore(self._name, self._value([float(count) for count in statistics]))

    def sentence_score(self, hypothesis: str, references: Sequence[str]) -> Any:
        return self._aggregate_and_compute(self._counts([[line] for line in references], [hypothesis]))

    def get_signature(self) -> "Signature":
        from sacrebleu.metrics.base import Signature

        return Signature({"num_refs": len(self._references or ())})


def _interval(metric: "Metric", statistics: Sequence[Any], resamples: int) -> Interval:
    """Return the confidence interval that ``corpus_score(n_bootstrap=resamples)`` gives, to the last digit."""
    # Not by that call, which fails where the scores of resamples are partly numpy's numbers and partly Python's, as
    # they are when some resamples have not one match (sacreBLEU 2.6).
    (found,) = resampled(metric, [statistics], resamples)
    # Scores of a single type stay as they are, since statistics.mean rounds the mean to this type, as in sacreBLEU.
    if len({type(each.score) for each in found}) > 1:
        for each in found:
            each.score = float(each.score)
    found[0].estimate_ci(found)
    return Interval(float(found[0]._mean), float(found[0]._ci), resamples, check_seed())


def resampled(metric: "Metric", systems: Sequence[Sequence[Any]], resamples: int) -> list[list[Any]]:
    """Return sacreBLEU's score of each bootstrap resample for each system; all systems have the same resamples.

    Args:
        systems: the counts of each line, for each system.
    """
    # One resample at a time: sacreBLEU itself holds the counts of all in memory. As there, counts are float32.
    # Its single call of `choice` for all resamples gives the same lines as one call for each.
    import numpy as np

    generator, tables = random_generator(), [np.array(statistics, dtype="float32") for statistics in systems]
    found: list[list[Any]] = [[] for _ in tables]
    for _ in range(resamples):
        lines = generator.choice(len(tables[0]), len(tables[0]))
        for scores, table in zip(found, tables, strict=True):
            scores.append(metric._compute_score_from_stats(table[lines].sum(0)))
    return found


def random_generator() -> "np.random.Generator":
    """Return sacreBLEU's generator of random numbers, with the seed of SACREBLEU_SEED."""
    import numpy as np

    return np.random.default_rng(None if (seed := check_seed()) == "none" else int(seed))


def check_seed() -> str:
    """Return SACREBLEU_SEED, from which sacreBLEU samples; raise DataError where it is no seed."""
    seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    if seed != "none" and not re.fullmatch(r"\d{1,100}", seed, re.ASCII):
        raise DataError(f"the environment variable SACREBLEU_SEED is {seed!r}: set a whole number from 0, or unset it")
    return seed


def score(
    hypotheses: list[str],
    references: list[str],
    *,
    target_language: str | None,
    text: str,
    metrics: Sequence[str] | None = None,
) -> dict[str, Score]:
    """Score translations line by line against one reference each; see Scorer, which takes more references too."""
    return Scorer([references], target_language=target_language, text=text).score(hypotheses, metrics)


def sentence_utility(metric: str, target_language: str = "") -> Callable[[str, str], float]:
    """Return a function that scores one hypothesis by one reference: sacreBLEU's sentence score, 0 to 100.

    Equal ones have 100, unlike in sacreBLEU, where some, such as empty ones, have less.

    Args:
        metric: ``chrf2`` or ``sacrebleu`` (with the orders that a short sentence has).
        target_language: selects the tokenizer of ``sacrebleu``.
    """
    sentence: Any = _build(metric, None, bleu_tokenizer(target_language), Rouge(), of_sentences=True)
    known: dict[str, list[Any]] = {}

    def ngrams(text: str) -> list[Any]:
        if text not in known:
            if sum(map(len, known)) > _MOST_COUNTED:
                known.clear()
            known[text] = sentence._extract_reference_info([sentence._preprocess_segment(text)])["ref_ngrams"][0]
        return known[text]

    def utility(hypothesis: str, reference: str) -> float:
        if hypothesis == reference:
            return 100.0
        if metric == "chrf2":  # as sentence_score, which counts the n-grams of both sides each time
            orders = zip(ngrams(hypothesis), ngrams(reference), strict=True)
            counts = [count for order in orders for count in sentence._get_match_statistics(*order)]
            return float(sentence._compute_f_score(counts))
        return float(sentence.sentence_score(hypothesis, [reference]).score)

    return utility


def resamples_for(num_lines: int, wanted: int | None = None) -> int:
    """Return the number of resamples for the intervals of a text: by default RESAMPLES, or 0 of a very long text.

    A single line gives no interval, as each resample is the same.
    """
    if num_lines < 2:
        return 0
    if wanted is not None:
        return wanted
    return RESAMPLES if num_lines <= MOST_LINES_RESAMPLED else 0


def plain_text(lines: list[str], text: str, language: str) -> list[str]:
    """Return text as a reader or a learned metric expects it, detokenised where it is tokenised."""
    return moses.detokenize(lines, moses.language_code(language)) if text == "tokenized" else lines


def _processing(form: Form, text: str, target_language: str | None) -> tuple[Callable[[list[str]], list[str]], str]:
    """Return the work that turns text into the form a metric reads, and the label of that work for the signature."""
    language = "" if target_language is None else moses.language_code(target_language)

    def split(lines: list[str]) -> list[str]:
        return [moses.split_compounds(line) for line in lines]

    def tokenize_and_split(lines: list[str]) -> list[str]:
        # In the order of get_ende_bleu.sh.
        return split(moses.tokenize([moses.replace_unicode_punctuation(line) for line in lines], language))

    sacremoses = f"sacremoses-{package_version('sacremoses')}"
    match form, text:
        case ("plain", "tokenized"):
            return lambda lines: moses.detokenize(lines, language), f"detokenized-moses-{language}-{sacremoses}"
        case ("tokens", "plain"):
            return lambda lines: moses.tokenize(lines, language), f"moses-{language}-{sacremoses}"
        case ("compounds", "plain"):
            return tokenize_and_split, f"unicode-punctuation+moses-{language}+compound-split-{sacremoses}"
        case ("compounds", "tokenized"):
            return split, "compound-split"
    return lambda lines: lines, ""


def _build(
    name: str, references: list[list[str]] | None, tokenizer: str, rouge: Rouge, *, of_sentences: bool = False
) -> "Metric":
    """Make the metric of that name, on text of its form; the tokenizer is that of BLEU of plain text."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if (own := task_metric_with(name)) is not None:
        return _OwnMetric(  # type: ignore[return-value]
            name,
            references,
            lambda of_references, hypotheses: own.counts(of_references[0], hypotheses),
            lambda sums: own.value(name, sums),
        )
    if name in ROUGE_METRICS:
        counts = partial(rouge.counts, name)
        return _OwnMetric(name, references, counts, lambda sums: 100 * sums[0] / sums[1])  # type: ignore[return-value]
    match name:
        case "chrf2":
            return CHRF(references=references)
        case "chrf2++":
            return CHRF(word_order=2, references=references)
        case "ter":
            asian = tokenizer != "13a"  # sacreBLEU uses `asian_support` only together with `normalized`
            return TER(normalized=asian, asian_support=asian, references=references)
        case "sacrebleu" | "sacrebleu-lc":
            tokenize = tokenizer
        case "sacrebleu-intl":
            tokenize = "intl"
        case _:  # the forms "tokens" and "compounds" are split into words
            tokenize = "none"
    try:
        # force: only silences the remark on text that looks tokenised, it changes no score
        return BLEU(
            tokenize=tokenize,
            lowercase=name.endswith("-lc"),
            force=True,
            effective_order=of_sentences,
            references=references,
        )
    except RuntimeError as error:  # sacreBLEU's where MeCab or its dictionary is missing
        language = tokenize.removesuffix("-mecab")
        raise DataError(f"{name} with tok:{tokenize} needs MeCab; pip install 'nmtkit[{language}]'") from error
