"""The steps of a preparation: read and clean the text, learn subwords, write ids and the data report."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.corpus_entries import corpus_name, mixture_label
from nmtkit.config.data_schema import DataConfig
from nmtkit.config.schema import Recipe
from nmtkit.console import counted, listed, log, progress
from nmtkit.corpora.corpus import Corpus
from nmtkit.data.cleaning import HELD_OUT_COPY, MEANINGS, RULES, SPOOLED, excerpt
from nmtkit.data.encoding import BlockEncoder, ShardStatistics, num_trained
from nmtkit.data.generated import Generation
from nmtkit.data.processes import in_order
from nmtkit.data.quality_page import data_report_page
from nmtkit.data.quality_report import Findings
from nmtkit.data.set_checks import ODD_SHARE, warn_of_first_pair, warn_of_odd_set
from nmtkit.data.shards import ShardWriter
from nmtkit.data.stages import fingerprint_of, finished_stage
from nmtkit.data.subword_learning import learn_subwords
from nmtkit.data.training_text import (
    HeldOut,
    Pair,
    TextBlock,
    TrainingText,
    TrainingTextReader,
    counts_of,
    explain_line_counts,
    open_sides,
)
from nmtkit.errors import DataError, NmtkitError
from nmtkit.files import write_text
from nmtkit.json_toml import write_json
from nmtkit.lines import write_lines
from nmtkit.run import Run
from nmtkit.tasks.classification import ONE_LABEL
from nmtkit.tasks.known import task_of
from nmtkit.text.normalization import FIELD_MARK
from nmtkit.text.scripts import language_test
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import join_segments, label_of
from nmtkit.versions import package_version, versions

FORMAT = 1
TEXT_FORMAT = 4
"""Format of the stage of the cleaned text."""
_SUBWORD_KEYS = (
    "subwords",
    "vocab_size",
    "share_vocab",
    "byte_fallback",
    "subword_sample_pairs",
    "wordpiece_characters",
    "segment_mark",
    "tokenizer",
)
"""Keys of [data] that do not affect the cleaned text."""


class Corpora(NamedTuple):
    """The corpora for training and validation, the test sets by name, and the generated corpora by index in train."""

    train: list[Corpus]
    valid: list[Corpus]
    tests: dict[str, Corpus]
    generated: dict[int, Generation]

    def unfinished(self) -> list[Generation]:
        """Return the generated corpora that are not finished."""
        return [generation for generation in self.generated.values() if generation.recorded() is None]


def fingerprints(recipe: Recipe, corpora: Corpora, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """Return fingerprints of all that decides the content of RUN/data, and of all that decides the cleaned text."""
    data = recipe.data
    settings = recipe.model_dump(mode="json", include={"data", "cleaning"})
    # A rule with its default action is left out, so that data prepared before the rule existed stay valid.
    defaults = CleaningConfig().model_dump(mode="json")
    settings["cleaning"] = {
        key: value for key, value in settings["cleaning"].items() if key not in RULES or value != defaults[key]
    }
    # The same for keys of [data], while they have no effect.
    has_no_effect = {
        "wordpiece_characters": data.subwords != "wordpiece",
        "task": data.task is None,
        "sampling_temperature": data.sampling_temperature == 1,
        "sequence_length": not data.has_labels,
        "label_type": data.label_type == "class",
        "context": not data.context,
        "context_sides": not data.context,
        "max_source_tokens": data.max_source_tokens is None,
    }
    # CORPUS_PATHS are left out, as the fingerprints of the corpora cover the files there.
    unused = [key for key, holds in has_no_effect.items() if holds]
    for key in (*unused, *DataConfig.EPISODE_KEYS, *DataConfig.CORPUS_PATHS):
        settings["data"].pop(key)
    if data.has_directions:
        settings["data"]["directions"] = [data.direction(entry) for entry in data.train]
    for_text = {"data": dict(settings["data"]), "cleaning": settings["cleaning"]}
    if not data.has_directions and data.directions[0] != (data.source_language, data.target_language):
        for_text["data"]["direction"] = data.directions[0]
    for key in ("train", "valid", "test"):
        if key not in data.held_out:
            settings["data"][key] = [corpus_name(entry) + mixture_label(entry) for entry in data.corpora(key)]
            for_text["data"][key] = [corpus_name(entry) for entry in data.corpora(key)]
    settings["data"].pop("tokenizer")  # a path; its content counts
    if tokenizer is not None:
        settings["data"]["tokenizer"] = tokenizer.fingerprint()
    for key in (*_SUBWORD_KEYS, "sampling_temperature"):
        for_text["data"].pop(key, None)
    if data.held_out and data.ineligible:
        for_text["data"]["tagged"] = data.ineligible
    sums = [[corpus.name, corpus.fingerprint] for corpus in (*corpora.train, *corpora.valid, *corpora.tests.values())]
    # Versions count for the stage only: finished data stay valid when a package is updated.
    return fingerprint_of(FORMAT, settings, sums), fingerprint_of("text", TEXT_FORMAT, for_text, sums, versions())


class Preparer:
    """One preparation or check.

    Attributes:
        findings: the faults of the text read so far.
    """

    def __init__(self, recipe: Recipe, corpora: Corpora, workers: int | None, *, may_stop: bool) -> None:
        """Read the pairs of the validation and test sets, without cleaning them."""
        self._recipe, self._data, self._task, self._workers = recipe, recipe.data, task_of(recipe.data), workers
        if recipe.cleaning.wrong_language != "off":
            for code in (*recipe.data.source_languages, *recipe.data.target_languages):
                language_test(code)  # fails here if py3langid is not installed, or does not know a language
        self.findings = Findings(recipe.cleaning, may_stop=may_stop)
        self._train, self._generated = corpora.train, corpora.generated
        self.findings.line_numbers = {number: each.line_numbers for number, each in corpora.generated.items()}
        _, self._text_fingerprint = fingerprints(recipe, corpora, None)
        if recipe.cleaning.wrong_language != "off":
            self._text_fingerprint = fingerprint_of(self._text_fingerprint, package_version("py3langid"))
        sums = [(generation.recorded() or {}).get("sha256") for generation in corpora.generated.values()]
        if sums:  # another device may have translated the same text differently
            self._text_fingerprint = fingerprint_of(self._text_fingerprint, sums)
        self._sample: dict[str, int] | None = None
        """Sizes of the sample from which subwords were learned; None if a tokenizer was given."""
        self._described: list[dict[str, Any]] = []
        self._valid = list[Pair]()
        self._valid_places = list[str]()  # for messages
        self._valid_directions = list[tuple[str, str]]()  # of each pair
        where, named = " on both sides" if self._task.has_source else "", _names(corpora.valid or corpora.train)
        self._no_validation = f"data.valid: no validation {self._task.example} has text{where}; look at {named}"
        entries = recipe.data.corpora("valid")
        for corpus, entry in zip(corpora.valid, entries, strict=True):
            direction = recipe.data.direction(entry)
            pairs = self._read_set(corpus, "valid", recipe.data.in_direction(direction))
            self._valid += pairs
            self._valid_directions += [direction] * len(pairs)
            self._valid_places += [f"{corpus.target.name}, line {number}" for number in range(1, len(pairs) + 1)]
        if corpora.valid and not any(source.strip() and target.strip() for source, target in self._valid):
            raise DataError(self._no_validation)
        self._tests = {
            name: self._read_set(corpus, "test", recipe.data.of_test(name)) for name, corpus in corpora.tests.items()
        }
        for name, corpus in corpora.tests.items():
            if not self._tests[name]:
                raise DataError(f"{corpus.source.name}: the test set is empty")
            if not self._task.has_source and not any(target for _, target in self._tests[name]):
                raise DataError(f"{corpus.source.name}: the test text has no characters to predict")

    def _read_set(self, corpus: Corpus, role: str, data: DataConfig) -> list[Pair]:
        source, target = open_sides(corpus, "strict")
        sources, targets = list(source), list(target)
        if len(sources) != len(targets):
            raise DataError(explain_line_counts(corpus, self._data, len(sources), len(targets))[1])
        self._describe(corpus, role, counts_of(source, target))
        pairs, task = list(zip(sources, targets, strict=True)), self._task
        if pairs:
            warn_of_first_pair(source.name, pairs[0], data)
        for number, pair in enumerate(pairs, start=1):
            task.check_pair(*pair, [source.name, target.name], number)
            if task.has_labels and role == "test" and not all(side.strip() for side in pair):
                side, missing = (source, "text") if pair[1].strip() else (target, "label")
                raise DataError(f"{side.name}, line {number}: no {missing}, so the line cannot be scored; remove it")
        if task.has_labels:
            pairs = [(one, task.model_target(label, target.name)) for one, label in pairs]
        num_equal = sum(pair[0] == pair[1] for pair in pairs if pair[0].strip())
        self.findings.check_sides([source.name, target.name], Counter(source_equals_target=num_equal), len(pairs))
        if task.has_source:
            warn_of_odd_set(target.name, pairs, data, self._recipe.cleaning)
            if role == "test":
                self._warn_of_shared(target.name, pairs)
        return pairs

    def _warn_of_shared(self, name: str, pairs: list[Pair]) -> None:
        """Warn of a test set that shares many pairs with the validation set."""
        valid = {pair for pair in self._valid if any(side.strip() for side in pair)}  # blank ones end documents
        if (shared := sum(pair in valid for pair in pairs)) > ODD_SHARE * len(pairs):
            log.warning(
                "%s: %s %s also in the validation set, which chooses the checkpoint", name,
                counted(shared, self._task.example), "is" if shared == 1 else "are",
            )  # fmt: skip

    def _describe(self, corpus: Corpus, role: str, counts: dict[str, Any], *, may_be_empty: bool = False) -> None:
        """Note the entry of a corpus that has been read, for the manifest."""
        names, removed = (corpus.source.name, corpus.target.name), counts["carriage_returns_removed"].values()
        # By name, as both sides may be columns of one file, about which one message is enough.
        for name, lines in {name: number for name, number in zip(names, removed, strict=True) if number}.items():
            log.info("%s: a carriage return was removed at the end of %s (CRLF text)", name, counted(lines, "line"))
        if role == "train" and not counts["pairs"] and not may_be_empty:
            log.warning("%s: the corpus is empty", corpus.name)
        files = [file.for_manifest() for file in corpus.files]
        entry = {"name": corpus.name, "role": role, **counts, "files": files, "sha256": corpus.fingerprint}
        self._described.append(entry)
        # Validation and test sets are read before the training corpora.
        self._described.sort(key=lambda corpus: ("train", "valid", "test").index(corpus["role"]))

    def read_text(self, folder: Path) -> TrainingText:
        """Return the cleaned training text, read now or by an earlier preparation."""

        def make(temporary: Path) -> tuple[dict[str, Any], dict[str, str]]:
            text, corpora, held_out = self._read_training_text(temporary, check_only=False)
            if not len(text):
                num_held_out = sum(map(len, held_out.values()))
                # Where pairs share only one side with a held-out one, fewer would not help.
                if not num_held_out or self.findings.dropped[HELD_OUT_COPY] > self.findings.counts["duplicate_pair"]:
                    raise DataError(self.nothing_left())
                raise DataError(too_few(self._data, num_held_out - 1))  # a pair has to be left to train on
            facts = {"findings": self.findings.state(), "corpora": corpora, "held_out": held_out}
            return facts, text.save()

        facts = finished_stage(folder, self._text_fingerprint, make)
        self.findings.restore(facts["findings"])
        for number, (corpus, counts) in enumerate(zip(self._train, facts["corpora"], strict=True)):
            generation = self._generated.get(number)
            more = {} if generation is None else {"generated": generation.facts()}
            self._describe(corpus, "train", {**counts, **more})
        directions, names = self._data.held_out_directions, list(self._data.tests)
        for key, rows in facts["held_out"].items():
            pairs = [(source.replace(FIELD_MARK, "\t"), target) for source, target, *_ in rows]
            groups = [int(row[2]) for row in rows]
            if key == "valid":
                self._valid, self._valid_places = pairs, [row[-1] for row in rows]
                self._valid_directions = [directions[group] for group in groups]
                for name, of_test in self._tests.items() if self._task.has_source else ():
                    self._warn_of_shared(f"test set {name}", of_test)
                continue
            for group, name in enumerate(names):
                self._tests[name] = [pair for pair, own in zip(pairs, groups, strict=True) if own == group]
        return TrainingText.load(folder)

    def check_text(self, folder: Path) -> dict[str, Any]:
        """Examine the text without preparing it, and return the report, which is written to the folder."""
        with TemporaryDirectory(dir=folder) as spool:
            text, corpora, _ = self._read_training_text(Path(spool), check_only=True)
        for number, (corpus, counts) in enumerate(zip(self._train, corpora, strict=True)):
            self._describe(corpus, "train", counts, may_be_empty=number in self._generated)
        if self._data.head in ("classes", "number"):
            sides = [open_sides(corpus, "surrogateescape") for corpus in self._train]
            pairs = chain.from_iterable(zip(*of_corpus, strict=False) for of_corpus in sides)
            if self._data.head == "number":
                pairs = chain(pairs, self._valid)  # as in finish_tokenizer
            labels = sorted({label_of(label) for source, label in pairs if source.strip()} - {""})
            if self._data.head == "classes":
                self._check_valid_labels(labels)
            if len(labels) == 1:
                self.findings.stop(ONE_LABEL.format(labels[0]))
        self._warn_of_trained_tests()
        return self._write_report(folder, self.findings.report(self._described, text.words))

    def _read_training_text(
        self, folder: Path, *, check_only: bool
    ) -> tuple[TrainingText, list[dict[str, Any]], dict[str, list[HeldOut]]]:
        """See `TrainingTextReader.read`."""
        sets = [self._valid, [pair for pairs in self._tests.values() for pair in pairs]]
        if self._data.has_directions:  # a pair may also be in training in the opposite direction
            sets = [[*pairs, *((target, source) for source, target in pairs)] for pairs in sets]
        sets = [[self._as_trained(pair) for pair in pairs] for pairs in sets]
        reader = TrainingTextReader(
            self._recipe, folder, self.findings, sets, check_only=check_only, workers=self._workers
        )
        result = reader.read(self._train)
        if self._data.context and not self.findings.counts["both_blank"]:
            log.warning("data.context: no blank line in the training text, so each corpus is read as one document")
        for rule in ("overlap_valid", "overlap_test"):
            if self.findings.counts[rule] and self.findings.actions[rule] == "keep":
                log.warning(
                    '%d training pairs are %s, which inflates its scores; [cleaning] %s = "drop" removes them',
                    self.findings.counts[rule], MEANINGS[rule], rule,
                )  # fmt: skip
        return result

    def _as_trained(self, pair: Pair) -> Pair:
        """Return a pair of a validation or test set in the form of training text."""
        target = self._task.model_target(pair[1], "a target of a validation or test set")
        return self._task.model_source(pair[0]), target

    def learn_subwords(self, folder: Path, text: TrainingText) -> Tokenizer:
        """Return the tokenizer of the text, learned now or by an earlier preparation."""

        def make(temporary: Path) -> tuple[dict[str, Any], dict[str, str]]:
            tokenizer, sample = learn_subwords(text, self._data)
            tokenizer.save(temporary / "tokenizer")
            return {"sample": sample}, {}

        settings = self._data.model_dump(mode="json")
        decisive = [settings[key] for key in _SUBWORD_KEYS]
        fingerprint = fingerprint_of("subwords", self._text_fingerprint, decisive, self._data.source_prefixes)
        self._sample = finished_stage(folder, fingerprint, make)["sample"]
        return Tokenizer.load(folder / "tokenizer")

    def finish_tokenizer(self, learned: Tokenizer, text: TrainingText) -> Tokenizer:
        """Return the tokenizer of the task; raise DataError for a validation label that is not in the training text."""

        def of_training() -> Iterator[Pair]:  # not read for tasks that do not need it
            for block in text.blocks():
                yield from ((source, target) for _, source, target in block.pairs())

        valid = [(source, target) for source, target in self._valid if source.strip() and target]
        is_open = self._data.head in ("number", "choice")  # validation labels need not be those of the training
        pairs = chain(of_training(), valid if is_open else ())
        tokenizer = self._task.tokenizer(learned, self._data, pairs)
        self._check_valid_labels(tokenizer.labels)
        labels = set(tokenizer.labels)
        for name, pairs_of_test in self._tests.items():
            unseen = [number for number, (_, label) in enumerate(pairs_of_test, start=1) if label not in labels]
            if labels and not is_open and unseen:
                log.warning(
                    "test set %s: labels that no training example has, such as %r, in %s; no model can predict them",
                    name, excerpt(pairs_of_test[unseen[0] - 1][1]), listed(unseen),
                )  # fmt: skip
        return tokenizer

    def _check_valid_labels(self, labels: Sequence[str]) -> None:
        """Stop at the first validation label that is not in ``labels``; do nothing if ``labels`` is empty."""
        known = set(labels)
        for place, (source, target) in zip(self._valid_places, self._valid, strict=True):
            if known and source.strip() and target and target not in known:
                label, remedy = excerpt(target), "correct it (see that the columns are right), or leave the line out"
                if "valid" in self._data.held_out:
                    remedy = (
                        f"data.valid = {self._data.valid} held it out; take another number, add examples, or {remedy}"
                    )
                self.findings.stop(
                    f"{place}: the label {label!r} does not occur in the training data, whose labels are "
                    f"{excerpt(', '.join(labels))}; {remedy}"
                )
                return

    def write_data(self, folder: Path, text: TrainingText, tokenizer: Tokenizer) -> dict[str, Any]:
        """Fill RUN/data, and return the entries of the manifest that describe it."""
        tokenizer.save(folder / "tokenizer")
        statistics, counts = {}, dict[str, int]()
        blocks = text.blocks(self._data.context)
        counts["train"], statistics["train"] = self._write_shards(folder, "train", tokenizer, blocks, len(text))
        if not counts["train"]:
            raise DataError(self.nothing_left("max_tokens and max_ratio"))
        if self._valid:
            _write_text(self._data, folder / "valid", self._valid)
            counts["valid"], statistics["valid"] = self._write_shards(
                folder, "valid", tokenizer, self._valid_blocks(), len(self._valid)
            )
        if self._data.valid and not counts.get("valid"):
            raise DataError(self._no_validation)
        self._warn_of_trained_tests()
        for name, pairs in self._tests.items():
            _write_text(self._data, folder / "test" / name, pairs)
            counts[f"test/{name}"] = len(pairs)
        subwords = {name: part.as_json() for name, part in statistics.items() if counts[name]}
        round_trip = statistics["train"].round_trip()
        report = self.findings.report(self._described, text.words, counts["train"], subwords, round_trip)
        self._write_report(folder, report)
        lengths = statistics["train"].training_lengths(self._data.max_source_tokens)
        return {
            "corpora": self._described,
            "cleaning": self.findings.left_out(),
            "rules": {rule: findings["count"] for rule, findings in report["rules"].items()},
            "pairs": counts,
            **({"valid_directions": self._valid_runs} if self._data.has_directions else {}),
            "train_tokens": {side: part["tokens"] for side, part in subwords["train"].items()},
            "training_lengths": lengths.model_dump(),
            "subword_sample": self._sample,
            "tokenizer_sha256": tokenizer.fingerprint(),
            **({"base_tokenizer_sha256": tokenizer.base_fingerprint} if "base_sha256" in tokenizer.settings else {}),
            "vocab_sizes": tokenizer.settings["vocab_sizes"],
        }

    def _warn_of_trained_tests(self) -> None:
        """Warn of test pairs in the training data of the run whose model or subwords this one takes."""
        data, path = self._data, self._recipe.training.init or self._data.tokenizer
        if path is None or not (run := Run(path)).is_prepared() or not task_of(data).has_source or data.has_labels:
            return
        for name, pairs in self._tests.items():
            try:
                count = num_trained([*map(self._as_trained, pairs)], data.tests.get(name, data.directions[0]), run)
            except NmtkitError:  # it has other languages, or is damaged, which training would find
                continue
            if count:
                log.warning(
                    "%s of the test set %s: also in the training data of %s; scores of a model that starts from it are "
                    "inflated", counted(count, "pair"), name, path,
                )  # fmt: skip

    @property
    def _valid_runs(self) -> list[tuple[tuple[str, str], int]]:
        """The direction and the number of consecutive validation pairs of one direction, or of one running text."""
        if not self._task.has_source:
            texts = [corpus["pairs"] for corpus in self._described if corpus["role"] == "valid"]
            return [(self._data.directions[0], count) for count in texts]
        return [(direction, len(list(pairs))) for direction, pairs in groupby(self._valid_directions)]

    def _valid_blocks(self) -> Iterator[TextBlock]:
        """Yield the validation pairs, a block for each of `_valid_runs`."""
        begin = 0
        for number, (_, count) in enumerate(self._valid_runs):
            pairs = [self._as_trained(pair) for pair in self._valid[begin : begin + count]]
            source, target = ("".join(f"{pair[side]}\n" for pair in pairs).encode() for side in range(2))
            yield TextBlock(number, begin + 1, begin, bytes([SPOOLED]) * count, source, target)
            begin += count

    def _write_shards(
        self, folder: Path, name: str, tokenizer: Tokenizer, blocks: Iterator[TextBlock], total: int
    ) -> tuple[int, ShardStatistics]:
        """Write a folder of shards; validation pairs are left out only if a side has no tokens."""
        statistics = ShardStatistics(tokenizer)
        sizes = (tokenizer.vocab_size("source"), tokenizer.vocab_size("target"))
        directions: list[tuple[str, str]] | None = [direction for direction, _ in self._valid_runs]
        weights, num_sampled, temperature = [1.0] * len(self._valid_runs), 0, 1.0
        if name == "train":
            directions, num_sampled, temperature = None, total, self._data.sampling_temperature
            weights = [1.0 if isinstance(entry, str) else entry.weight for entry in self._data.train]
        is_running_text, longest = not self._task.has_source, self._data.max_source_tokens
        encoder = (folder / "tokenizer", self._recipe, num_sampled, directions)
        with (
            ShardWriter(folder / name, sizes, weights, temperature, is_running_text=is_running_text) as writer,
            progress(f"encoding {name}", total) as advance,
        ):
            done = 0
            for block in in_order(BlockEncoder, encoder, blocks, self._workers):
                self.findings.add_block(block.findings)
                writer.add_rows(block.ids, block.lengths, block.lines, block.corpus)
                statistics.add(block)
                done += block.num_read
                advance(done)
        if temperature != 1:
            rates = zip(self._train, writer.weights, strict=True)
            noun = self._task.example
            seen = ", ".join(f"{corpus.name} {weight:.3g} times" for corpus, weight in rates)
            log.info("sampling_temperature = %g: an epoch contains each %s of %s", temperature, noun, seen)
        if cut := statistics.counts["cut_sources"]:
            sources = f"{cut:,} of {counted(writer.num_pairs, 'source')}"
            limit = (
                "data.sequence_length"
                if self._data.has_labels
                else f"the first {longest} tokens (data.max_source_tokens)"
            )
            log.info("%s: %s cut to %s", name, sources, limit)
        return writer.num_pairs, statistics

    def nothing_left(self, cause: str | None = None) -> str:
        """Return the message that cleaning leaves no pair; ``cause``: what to look at, by default the corpora."""
        dropped = ", ".join(f"{rule}: {count}" for rule, count in self.findings.dropped.items())
        noun, dropped = self._task.example, dropped or "the corpora are empty"
        return f"no training {noun} is left after cleaning ({dropped}); look at {cause or _names(self._train)}"

    def _write_report(self, folder: Path, report: dict[str, Any]) -> dict[str, Any]:
        if not self._task.has_source:
            del report["words"]["source"]
            report["examples"] = {rule: example[1:] for rule, example in report["examples"].items()}
        write_json(folder / "report.json", report)
        write_text(folder / "report.html", data_report_page(report, self._recipe.name, self._task.example))
        return report


def _write_text(data: DataConfig, path: Path, pairs: list[Pair]) -> None:
    """Write the sources, and the references in the form of translations: with pieces joined to words."""
    write_lines(path.with_name(f"{path.name}.source.txt"), [source for source, _ in pairs])
    references = [target for _, target in pairs]
    if data.subwords == "none":
        references = [join_segments(line, data.segment_mark) for line in references]
    write_lines(path.with_name(f"{path.name}.reference.txt"), references)


def too_few(data: DataConfig, available: int) -> str:
    """Return the message that there are too few pairs to hold out."""
    stated = " and ".join(f"data.{key} = {number}" for key, number in data.held_out.items())
    number = counted(max(0, available), f"different {task_of(data).example}")
    return (
        f"{stated}: at most {number} can be held out from the training corpora"
        f"{' (tagged and generated ones left out)' if data.ineligible else ''}; take fewer"
    )


def _names(corpora: Sequence[Corpus]) -> str:
    """Return the names of the texts of at most three corpora."""
    names = dict.fromkeys(side.name for corpus in corpora[:3] for side in (corpus.source, corpus.target))
    return ", ".join(names) + (", ..." if len(corpora) > 3 else "")
