"""`nmtkit score`."""

import os
import re
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, BadParameter, Option

from nmtkit import console
from nmtkit.cli import options

if TYPE_CHECKING:
    from nmtkit.evaluation.comet import Comet


# An enum, as Typer refuses a list of Literal.
class PairedTest(StrEnum):
    """A significance test, one of `significance.Method`."""

    BOOTSTRAP = "bootstrap"
    RANDOMIZATION = "randomization"
    MCNEMAR = "mcnemar"


def command(
    run: Annotated[Path | None, Argument(metavar="[RUN]", help="Folder of a run that has translations.")] = None,
    hypotheses: Annotated[
        list[Path] | None,
        Option(
            "--hypothesis",
            help="Translations to score, one per line; plain, compressed or .sgm. May be repeated; the first is "
            "the baseline of --paired.",
        ),
    ] = None,
    references: Annotated[
        list[Path] | None, Option("--reference", help="Reference translations. May be repeated.")
    ] = None,
    source: Annotated[
        Path | None, Option(help="Source text, for --model, --comet and checks of the translations.")
    ] = None,
    test_set: Annotated[
        str | None,
        Option(
            metavar="NAME", help="Public test set, such as sacrebleu:wmt14/full (see `nmtkit corpora --sacrebleu`)."
        ),
    ] = None,
    source_language: Annotated[str | None, Option(metavar="en", help="Source language of --test-set.")] = None,
    target_language: Annotated[
        str | None, Option(metavar="de", help="Target language; it decides how text is tokenised.")
    ] = None,
    mirror: options.Mirror = None,
    text: Annotated[
        Literal["plain", "tokenized"], Option(help="tokenized: the text is already split into words.")
    ] = "plain",
    metric: Annotated[
        list[str] | None,
        Option(
            metavar="M",
            help="Compute only this metric. May be repeated. evalb is for parsing; rouge1, rouge2, rougeL and "
            "rougeLsum are for summaries; labels (accuracy, F1, Matthews) and numbers (Pearson, Spearman) are for one "
            "label or number per line.",
        ),
    ] = None,
    stemmer: Annotated[bool, Option(help="Strip suffixes of English words for ROUGE.")] = False,
    separator: Annotated[
        str | None,
        Option(
            "--sentence-separator",
            metavar="TEXT",
            help="Text between the sentences of a line, for rougeLsum.  [default: a tab]",
        ),
    ] = None,
    confidence: Annotated[
        int | None,
        Option(
            min=0,
            help="Bootstrap resamples for 95 % intervals, which single lines do not have; 0: none.  "
            "[default: 1000; 0 for over 10,000 lines]",
        ),
    ] = None,
    paired: Annotated[
        list[PairedTest] | None,
        Option(
            help="Significance test of each system against the first. May be repeated. mcnemar is for the accuracy of "
            "--metric labels."
        ),
    ] = None,
    trials: options.Trials = None,
    comet: Annotated[
        str | None, Option(metavar="MODEL", help="Score with COMET too: a checkpoint, or Unbabel/wmt22-comet-da.")
    ] = None,
    sentences: Annotated[Path | None, Option(help="File for the scores of each line, as JSON lines.")] = None,
    json_file: Annotated[
        Path | None, Option("--json", help="File for the scores, as JSON with one entry per hypothesis file.")
    ] = None,
    models: Annotated[
        list[Path] | None,
        Option(
            "--model",
            metavar="MODEL",
            help="Compute with this model the log-probability of each line of --hypothesis as the translation of its "
            "line of --source (language models: as its continuation). Without --source, a language model scores the "
            "whole text. Several models form an ensemble.",
        ),
    ] = None,
    output: Annotated[Path | None, Option(help="File for the result of --model.  [default: stdout]")] = None,
    form: Annotated[
        Literal["tsv", "jsonl"] | None,
        Option(
            "--format",
            help="Output format of --model. tsv: log-probability, number of tokens, perplexity and status, "
            "separated by tabs. jsonl: JSON lines.  [default: tsv]",
        ),
    ] = None,
    tokens: Annotated[bool, Option(help="With --model: also write each token and its log-probability.")] = False,
    from_: options.From = None,
    to: options.To = None,
    max_tokens: options.MaxTokens = None,
    batch_tokens: options.BatchTokens = None,
    precision: options.ScoringPrecision = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Score translations with BLEU, chrF, TER and others, and print the signature of each metric.

    With RUN, score the translations of the run's test sets. With --hypothesis, score any files. With --model, compute
    the log-probability of each translation.

    \b
    Examples:
      nmtkit score runs/quickstart
      nmtkit score --hypothesis out.de --reference test.de --target-language de
      nmtkit score --hypothesis a.de --hypothesis b.de --paired bootstrap \\
          --test-set sacrebleu:wmt14/full --source-language en --target-language de
      nmtkit score --hypothesis out.txt --reference test.txt --metric rouge1 --metric rougeLsum --stemmer
      nmtkit score --hypothesis a.txt --hypothesis b.txt --reference labels.txt --metric labels --paired mcnemar
      nmtkit score --model runs/quickstart --source test.en --hypothesis out.de
      nmtkit score --model runs/shakespeare --hypothesis text.txt
    """
    of_files = [references, test_set, source_language, target_language, metric, json_file, paired, trials, sentences]
    has_file_options = any(of_files) or stemmer or separator is not None or text != "plain"
    if confidence == 1:
        raise BadParameter(
            "a confidence interval needs at least 2 resamples; 0 turns intervals off", param_hint="--confidence"
        )
    # A mirror that the environment sets for all commands is no fault where none is needed.
    of_environment = os.environ.get("NMTKIT_MIRROR")
    if mirror is not None and not test_set and not (of_environment and mirror == Path(of_environment)):
        raise BadParameter("needs --test-set", param_hint="--mirror")
    options.check_files(
        [("--json", json_file), ("--sentences", sentences), ("--output", output)],
        [("--source", source)]
        + [("--hypothesis", path) for path in hypotheses or []]
        + [("--reference", path) for path in references or []],
    )
    if models:
        if run or has_file_options or comet or confidence is not None:
            raise BadParameter(
                "--model needs --hypothesis and, for translations, --source; leave out RUN, --reference and options of "
                "the metrics"
            )
        if hypotheses is None or len(hypotheses) != 1:
            raise BadParameter("--model needs one --hypothesis, and --source unless it is a language model")
        from nmtkit.cli.score_by_model import score_by_model, score_running_text

        if source is None:
            if tokens or max_tokens or batch_tokens or precision or to or from_:
                raise BadParameter(
                    "without --source, --model scores a whole text with a language model; leave out --tokens, "
                    "--max-tokens, --batch-tokens, --precision, --from and --to"
                )
            score_running_text(
                models, hypotheses[0], output=output, as_json=form == "jsonl", device=device, threads=threads
            )
            return
        score_by_model(
            models, source, hypotheses[0], output=output, as_json=form == "jsonl", tokens=tokens,
            max_tokens=max_tokens, batch_tokens=batch_tokens, precision=precision, device=device, threads=threads,
            to=to, from_=from_,
        )  # fmt: skip
        return
    if output or form or tokens or max_tokens or batch_tokens or precision or to or from_:
        raise BadParameter("--output, --tokens, --precision, --from, --to and similar options need --model")
    if (threads or device != "auto") and not (comet or run):
        raise BadParameter("--device and --threads need RUN, --model or --comet")
    if (run is None) == (hypotheses is None and references is None and test_set is None):
        raise BadParameter("give a RUN, or --hypothesis and --reference")
    if run is not None:
        if source or has_file_options:
            raise BadParameter(
                f"a RUN has its own files and metrics, and its scores go to {run / 'scores.json'}; use "
                "--source, --text, --metric, --paired, --sentences, --json and similar options with "
                "--hypothesis RUN/translations/TEST.txt and --reference RUN/data/test/TEST.reference.txt"
            )
        _score_run(run, confidence, comet, device, threads)
        return
    if not hypotheses or bool(references) == bool(test_set):
        raise BadParameter("give --hypothesis together with either --reference or --test-set")
    if test_set and (source or not source_language or not target_language):
        raise BadParameter("--test-set needs --source-language and --target-language; leave out --source")
    if source_language and not test_set:
        raise BadParameter("--source-language needs --test-set")
    if paired and len(hypotheses) < 2:
        raise BadParameter("--paired compares systems; give --hypothesis at least twice")
    if trials and not set(paired or []) - {PairedTest.MCNEMAR}:
        raise BadParameter("--trials needs --paired bootstrap or randomization")
    from nmtkit.evaluation.metric_names import TASK_METRICS

    if target_language is not None and not re.fullmatch("[a-z]{2,3}([-_][a-z0-9]+)*", target_language, re.I):
        told = f"{target_language!r} is no language code, such as de or zh_Hans"
        raise BadParameter(told, param_hint="--target-language")
    if target_language and (own := next((name for name in metric or [] if name in TASK_METRICS), None)):
        raise BadParameter(f"--target-language has no effect on --metric {own}; leave it out")
    if (stemmer or separator is not None) and not any(name.startswith("rouge") for name in metric or []):
        raise BadParameter("--stemmer and --sentence-separator need --metric rouge1, rouge2, rougeL or rougeLsum")
    if separator is not None and "rougeLsum" not in (metric or []):
        raise BadParameter("needs --metric rougeLsum; the others read no sentences", param_hint="--sentence-separator")
    if separator is not None and separator != "\t" and not (separator and separator.isprintable()):
        raise BadParameter("give a tab or printable text", param_hint="--sentence-separator")
    if comet and (text != "plain" or not (source or test_set)):
        raise BadParameter("--comet needs --source and --text plain")

    from nmtkit.cli.score_files import read_texts, score_files
    from nmtkit.evaluation.rouge import Rouge

    texts = read_texts(hypotheses, references or [], source, test_set, (source_language, target_language), mirror)
    lines = chain(*texts.systems.values(), *texts.references)
    if separator is not None and not any(separator in line for line in lines):
        console.log.warning(
            "--sentence-separator %r is in no hypothesis and no reference, so for rougeLsum a line is one sentence",
            separator,
        )
    score_files(
        texts,
        text,
        target_language,
        metrics=metric or None,
        rouge=Rouge(stemmer, separator or "\t"),
        resamples=confidence,
        paired=[test.value for test in dict.fromkeys(paired or [])],
        trials=trials,
        comet=_load_comet(comet, device, threads) if comet is not None else None,
        sentences=sentences,
        json_file=json_file,
    )


def _load_comet(model: str, device: str, threads: int | None) -> "Comet":
    from nmtkit.evaluation.comet import Comet

    return Comet(model, options.start_device(device, threads))


def _score_run(run: Path, confidence: int | None, comet: str | None, device: str, threads: int | None) -> None:
    from nmtkit.cli.score_files import print_scores
    from nmtkit.pipeline import phenomenon_scores, score_run
    from nmtkit.run import Run
    from nmtkit.tasks.known import task_of

    if (threads or device != "auto") and not comet and Run(run).is_prepared():
        task = task_of(Run(run).recipe().data)
        if task.has_text and task.has_source:
            raise BadParameter(f"--device and --threads: the model of {run} is not needed to score its {task.noun}s")
        options.start_device(device, threads)
    load_comet = partial(_load_comet, comet, device, threads) if comet is not None else None
    scores = score_run(run, resamples=confidence, load_comet=load_comet, device=device)
    print_scores(scores, {})
    data = Run(run).recipe().data
    if "synthetic" in data.tests and "builtin/synthetic" in data.corpora("test"):
        rows = [[name, f"{count}", f"{score.score:.2f}"] for name, count, score in phenomenon_scores(run)]
        console.print_table("Test set synthetic, by phenomenon", ["phenomenon", "sentences", "sacreBLEU"], rows)
