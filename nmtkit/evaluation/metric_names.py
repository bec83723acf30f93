"""Which metrics there are, which of them a text can have, and what their scores compare with."""

import difflib
from collections.abc import Sequence
from typing import Literal

from nmtkit.config.data_schema import DataConfig
from nmtkit.errors import DataError
from nmtkit.evaluation.evalb import Evalb
from nmtkit.evaluation.labels import LabelMetric, NumberMetric
from nmtkit.evaluation.rouge import ROUGE_METRICS
from nmtkit.tasks.known import task_of
from nmtkit.tasks.task import TaskMetric
from nmtkit.text import moses
from nmtkit.text.scripts import is_unspaced, scripts_of

METRICS = ("sacrebleu", "chrf2", "chrf2++", "ter", "bleu-tokenized", "bleu-tokenized-lc", "bleu-compound-split")
"""The metrics that are computed by default."""
ON_REQUEST = ("sacrebleu-lc", "sacrebleu-intl", *ROUGE_METRICS)
"""The metrics that are computed only by name, or (ROUGE) for summaries."""

Form = Literal["plain", "tokens", "compounds", "as it is"]
FORMS: dict[str, Form] = {
    **dict.fromkeys(("sacrebleu", "sacrebleu-lc", "sacrebleu-intl", "chrf2", "chrf2++", "ter"), "plain"),
    **dict.fromkeys(("bleu-tokenized", "bleu-tokenized-lc"), "tokens"),
    "bleu-compound-split": "compounds",
    **dict.fromkeys(ROUGE_METRICS, "as it is"),
}
"""The form of the text that a metric reads, see metrics.py."""
_COMPARABLE_TO = {
    "sacrebleu": "other sacreBLEU scores of the same signature; not the paper's 27.3",
    "sacrebleu-lc": "other sacreBLEU scores of the same signature, lower-cased (case:lc)",
    "sacrebleu-intl": "other sacreBLEU scores of the same signature, tokenised by mteval-v14's rules (tok:intl)",
    "chrf2": "other chrF2 scores of the same signature",
    "chrf2++": "other chrF2++ scores of the same signature (nw:2); not chrF2",
    "ter": "other TER scores of the same signature; lower is better",
    "bleu-tokenized": "multi-bleu.perl and fairseq scores on the same tokens, cased; not sacreBLEU",
    "bleu-tokenized-lc": "multi-bleu.perl and fairseq scores on the same tokens, lower-cased; not sacreBLEU",
    "bleu-compound-split": "the paper's 27.3 and 28.4 (newstest2014 en-de), get_ende_bleu.sh; not sacreBLEU",
    "nll": "the same text and vocabulary; nats per token, lower is better",
    "perplexity": "the same text and vocabulary; lower is better",
    "word-perplexity": "the same text, whatever the vocabulary; lower is better",
    "bits-per-character": "the same text, whatever the vocabulary; lower is better",
    "success-rate": "episodes in the same environment with the same target return and sampling",
    "shortest-rate": "episodes in the same environment with the same target return and sampling",
    "mean-return": "episodes in the same environment with the same target return and sampling",
    "rouge1": "other ROUGE-1 scores (F1) of the same signature, and rouge-score's with the same stemmer",
    "rouge2": "other ROUGE-2 scores (F1) of the same signature, and rouge-score's with the same stemmer",
    "rougeL": "rouge-score's rougeL (F1) with the same stemmer; not ROUGE-1.5.5's, which is rougeLsum",
    "rougeLsum": "ROUGE-L (F1) of the same sentences, by rouge-score's rougeLsum or ROUGE-1.5.5; not rougeL",
    "comet": "other COMET scores of the same model and reference; its scale is the model's own",
}

TASK_METRICS: dict[str, TaskMetric] = {own.name: own for own in (Evalb(), LabelMetric(), NumberMetric())}
"""The metrics that a task has in place of these, see `Task.own_metric`."""


def left_out(*, target_language: str | None, text: str) -> dict[str, str]:
    """Return the metrics that cannot be computed on such text, each with the reason and what to do."""
    scripts = scripts_of(target_language or "")
    wordless: tuple[str, ...] = ()
    if text == "plain" and is_unspaced(target_language or ""):
        wordless = ("bleu-tokenized", "bleu-tokenized-lc", "sacrebleu-intl")
        # TER splits Chinese and Japanese itself
        wordless += () if "Han" in scripts else ("ter",)
    reasons = {}
    is_latin = scripts in ((), ("Latin",))  # or unknown
    for name in METRICS + ON_REQUEST:
        form = FORMS[name]
        if name in ROUGE_METRICS and not is_latin:
            reasons[name] = f"it reads ASCII letters and digits only, not the script of {target_language}: use chrf2"
        if form == "compounds":
            if target_language is None:
                reasons[name] = "it is defined for German only: state the target language (--target-language de)"
            elif moses.language_code(target_language) != "de":
                other = "sacrebleu" if wordless else "bleu-tokenized"
                reasons[name] = f"it is defined for German only, not for {target_language}: use {other}"
        elif name in wordless:
            reasons[name] = f"it needs blanks between words, which {target_language} does not have: use sacrebleu"
        elif form == "tokens" and text == "plain" and target_language is None:
            reasons[name] = "the Moses tokeniser needs the target language (e.g. --target-language de)"
        elif form == "plain" and text == "tokenized" and target_language is None:
            reasons[name] = (
                "tokenised text has to be detokenised first, and the Moses detokeniser needs the target language "
                "(e.g. --target-language de)"
            )
    return reasons


def default_metrics(data: DataConfig) -> list[str] | None:
    """Return the task's own metric, or its text metrics that are possible in the language; None: those of METRICS."""
    task = task_of(data)
    if task.own_metric is not None:
        return [task.own_metric]
    impossible = left_out(target_language=data.target_language, text=data.text)
    return [name for name in task.metrics or () if name not in impossible] or None


def task_metric(text: str, metrics: Sequence[str] | None = None) -> TaskMetric | None:
    """Return the one of TASK_METRICS among the given metrics, else that of trees for trees; None: there is none."""
    names = [*(metrics or ()), task_of(text).own_metric]
    return next((TASK_METRICS[name] for name in names if name in TASK_METRICS), None)


def task_metric_with(score: str) -> TaskMetric | None:
    return next((own for own in TASK_METRICS.values() if score in own.tested), None)


def comparable_to(metric: str) -> str:
    """Return what a score of this metric may be compared with, in one short phrase.

    Raises:
        DataError: the metric is unknown.
    """
    known = _COMPARABLE_TO | {name: what for own in TASK_METRICS.values() for name, what in own.comparable_to.items()}
    if metric not in known:
        require_known(metric)
    return known[metric]


def require_known(metric: str) -> None:
    known = (*METRICS, *ON_REQUEST, *TASK_METRICS)
    if metric.lower() == "comet":
        raise DataError("COMET needs a model: give `nmtkit score` one, such as --comet Unbabel/wmt22-comet-da")
    if (own := task_metric_with(metric)) is not None:
        raise DataError(f"{metric} is one of the scores of {own.name}: give --metric {own.name}")
    if metric not in known:
        nearest = difflib.get_close_matches(metric.lower(), known, n=1, cutoff=0.0)[0]  # with 0.0 there is one
        raise DataError(f"unknown metric {metric!r}: did you mean {nearest!r}? The metrics are {', '.join(known)}")
