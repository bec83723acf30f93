"""Translation of lines of text, the same for every engine.

    line -> sentences -> normalised -> ids -> segments (what is too long is cut) -> search_segments -> text of each line

Sentences whose best translation lacks terms of the glossary or kept spans are searched again, with these required.
The engines are `Translator` (translator.py, torch) and `CTranslate2Translator`. Nothing here imports torch.
"""

import copy
import dataclasses
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from nmtkit.config.decoding_schema import DecodingConfig, TrainingLengths
from nmtkit.console import counted, listed, log
from nmtkit.data.context import contexts
from nmtkit.decoding.lengths import Split, cut_source, is_short, source_limit, splits_sentences
from nmtkit.decoding.request import DEFAULT_BATCHING, Batching, Segment, Translation, TranslationRequest
from nmtkit.decoding.wanted import Ids, Wanted, contains, mended, missing_in
from nmtkit.errors import DataError
from nmtkit.lines import without_line_end
from nmtkit.tasks.known import task_of
from nmtkit.text.scripts import join_sentences
from nmtkit.text.sentences import sentence_starts
from nmtkit.text.terms import kept_spans
from nmtkit.text.tokenizer import Tokenizer
from nmtkit.text.vocabulary import UNK

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which is no character; some programs decode invalid UTF-8 to such halves."""


class Engine(ABC):
    """Base class of translators; subclasses implement the search.

    Attributes:
        tokenizer: tokenizer of both sides.
        decoding: settings of the search.
        lengths: lengths of the training pairs, if known.
        precision: precision of the weights or of the matrix products.
        device: kind of device: cpu, cuda or mps.
        is_small: matrix products for one sentence are too small for several threads.
        has_alignments: translations can be aligned with their sources.
        weights_sha256: checksums of the weight files that were read.
        model_sha256: checksums of the weights of the models; for an export, of the models that it was made from.
        before_step: called before each step of a search by torch; an exception from it ends the translation.
    """

    precision: str
    device: str
    is_small = False
    has_alignments = True
    weights_sha256: tuple[str, ...] = ()
    model_sha256: tuple[str, ...] = ()

    def __init__(
        self, tokenizer: Tokenizer, decoding: DecodingConfig, lengths: TrainingLengths | None, max_tokens: int | None
    ) -> None:
        """Store the settings; ``max_tokens`` is the maximum length that the positions of the model allow, if any."""
        self.tokenizer = tokenizer
        self.task = task_of(tokenizer)
        self.task.require("translate", "classify")
        self.decoding = decoding
        self.lengths = lengths
        self._max_tokens = max_tokens
        self.before_step: Callable[[], None] = lambda: None

    @abstractmethod
    def check_search(self, request: TranslationRequest) -> None:
        """Raise DataError if the search does not support the request, regardless of the lines."""

    @abstractmethod
    def search_segments(
        self, segments: Sequence[Segment], request: TranslationRequest, batching: Batching
    ) -> Iterator[dict[int, list[Translation]]]:
        """Yield, for each batch, the translations of its segments by their indices."""

    @property
    def batch_tokens(self) -> int:
        """Default number of source tokens per batch, with padding."""
        return 2048

    @property
    @abstractmethod
    def num_threads(self) -> int:
        """Number of threads for the tokenizer."""

    def description(self) -> dict[str, Any]:
        """Return all settings, apart from weights and request, that affect translations, as JSON values."""
        return {
            "decoding": self.decoding.model_dump(mode="json"),
            "device": self.device,
            "precision": self.precision,
            "training_lengths": self.lengths and self.lengths.model_dump(),
        }

    def translate(
        self,
        lines: Iterable[str],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        max_source_tokens: int | None = None,
        split: Split = "auto",
        batching: Batching = DEFAULT_BATCHING,
    ) -> list[str]:
        """Return one translation per line, "" for a line without text; arguments as in `translations` and its request.

        If the model was trained with context, blank lines separate documents. Lines that may not be meant as they are
        read are logged (see `Task.source_doubt`).
        """
        lines = lines if isinstance(lines, str) else [*lines]  # a string is refused below
        request = TranslationRequest(
            max_source_tokens=max_source_tokens, split=split, source_language=source_language,
            target_language=target_language,
        )  # fmt: skip
        translated = self.translations(lines, request, batching=batching)
        doubts: dict[str, list[int]] = {}
        for number, line in enumerate(lines, start=1):
            if doubt := self.task.source_doubt(line):
                doubts.setdefault(doubt, []).append(number)
        for doubt, numbers in doubts.items():
            log.warning("%s: %s", doubt, listed(numbers))
        return [best.text for best, *_ in translated]

    def translations(
        self,
        lines: Iterable[str],
        request: TranslationRequest,
        *,
        batching: Batching = DEFAULT_BATCHING,
        before_batch: Callable[[], None] = lambda: None,
        advance: Callable[[float], None] = lambda share: None,
        found: dict[tuple[int, int], list[Translation]] | None = None,
    ) -> list[list[Translation]]:
        """Return up to ``n_best`` translations of each line, best first; samples in the order of sampling.

        A line without text has one empty translation.

        Args:
            lines: a list, an open file or another iterable; a line end after a line is no part of it.
            before_batch: called before each batch; an exception from it ends the translation.
            advance: called after each batch with the translated share of the source tokens.
            found: translations of segments by search and index, which are not searched for again; all others are added.

        Raises:
            DataError: the request is not possible (see `check`), or does not have one prefix or list of phrases per
                line; or a line contains half of a surrogate pair.
            TypeError: ``lines`` is one string, or has something else in it.
        """
        if (engine := self.in_direction(request)) is not self:
            return engine.translations(
                lines, request, batching=batching, before_batch=before_batch, advance=advance, found=found
            )
        if isinstance(lines, str):
            raise TypeError("lines are a list of strings, not one string, each character of which would be a line")
        lines = [*lines]
        for number, line in enumerate(lines, request.first_line):
            if not isinstance(line, str):
                raise TypeError(f"line {number} is {line!r}, not a string")
        lines = [*map(without_line_end, lines)]
        for number, line in enumerate(lines, request.first_line):
            if bad := SURROGATE.search(line):
                raise DataError(f"line {number} is not valid UTF-8: {bad.group()!r} in it")
            if fault := self.task.source_fault(line):
                raise DataError(f"line {number} {fault}")
        self._check_search(request)
        lines = [self.task.model_source(line) for line in lines]
        segments = self._segments(lines, request)
        translated = self._searched(segments, request, batching, before_batch, advance, {} if found is None else found)
        by_line: list[list[tuple[Segment, list[Translation]]]] = [[] for _ in lines]
        for index, segment in enumerate(segments):
            by_line[segment.line].append((segment, translated[index]))
        results = []
        for number, (line, parts) in enumerate(zip(lines, by_line, strict=True)):
            lengths = [len(segment.ids) for segment, _ in parts]
            # The n-th best translation of a line joins the n-th best ones of its segments.
            in_words = self.tokenizer.text == "tokenized"
            # Segments may have different numbers of translations; the fewest decide.
            same_ranks = zip(*(ranked for _, ranked in parts), strict=False)
            joined = [_join(same_rank, lengths, in_words=in_words) for same_rank in same_ranks]
            if not joined:  # a line without text, which satisfies no constraint
                has_prefix = bool(request.prefixes and request.prefixes[number].strip())
                is_constrained = has_prefix or bool(request.required and request.required[number])
                empty = () if request.attention else None
                blank = Translation("", 0.0, 0.0, alignment=empty, source_pieces=empty, is_unsatisfied=is_constrained)
                joined = [dataclasses.replace(blank, probabilities={} if self.tokenizer.labels else None)]
            results.append([dataclasses.replace(best, **vars(self.task.output(line, best.text))) for best in joined])
        return results

    def _searched(
        self,
        segments: Sequence[Segment],
        request: TranslationRequest,
        batching: Batching,
        before_batch: Callable[[], None],
        advance: Callable[[float], None],
        found: dict[tuple[int, int], list[Translation]],
    ) -> dict[int, list[Translation]]:
        """Return the translations of each segment; see `translations`.

        Segments whose best translation lacks a term or span are searched again, with these as constraints. A
        translation that contains them by itself is better, as all hypotheses of its beam are.
        """
        translated: dict[int, list[Translation]] = {}
        chosen, rounds = dict(enumerate(segments)), 2 if any(segment.wanted for segment in segments) else 1
        for number in range(rounds):
            if number == 1:
                again = ((index, translated[index][0]) for index in chosen if translated[index][0].missing)
                changed = ((index, self._constrained(segments[index], best, request)) for index, best in again)
                chosen = {index: segment for index, segment in changed if segment != segments[index]}
                if not chosen:
                    advance(1.0)
            translated |= {index: found[number, index] for index in chosen if (number, index) in found}
            indices = [index for index in chosen if (number, index) not in found]
            batches = self.search_segments([chosen[index] for index in indices], request, batching)
            total = sum(len(segment.ids) for segment in chosen.values())
            done = total - sum(len(chosen[index].ids) for index in indices)
            while done < total:
                # A batch is searched in `next`, so `before_batch` is called before that and not in a loop over batches.
                before_batch()
                for position, results in next(batches).items():
                    index, segment = indices[position], chosen[indices[position]]
                    translated[index] = found[number, index] = [self._checked(one, segment, request) for one in results]
                    done += len(segment.ids)
                advance((number + done / total) / rounds)
        return translated

    def _checked(self, translation: Translation, segment: Segment, request: TranslationRequest) -> Translation:
        """Return a translation with the terms and spans that it lacks."""
        missing = missing_in(translation.text, translation.pieces, segment.wanted, request.keep, self.tokenizer)
        if not missing:
            return translation
        texts = tuple(" | ".join(entry.texts) for entry in missing)
        return dataclasses.replace(translation, missing=texts, is_unsatisfied=True)

    def _constrained(self, segment: Segment, best: Translation, request: TranslationRequest) -> Segment:
        """Return a segment with constraints for what its best translation lacks.

        If a span was copied wrongly, the translation up to it, with the right span, becomes the prefix. Everything else
        that is missing becomes a required phrase.
        """
        prefix = segment.prefix
        missing = missing_in(best.text, best.pieces, segment.wanted, request.keep, self.tokenizer)
        beginning, left = mended(best.text, segment.wanted, missing, request.keep)
        forbidden = self.target_ids(request.forbidden, "forbidden phrase")
        try:
            [begun] = self.target_ids([beginning], "prefix", "", forbidden)
        except DataError:  # the vocabulary cannot write it, or it is forbidden
            begun = ()
        if begun and begun[: len(prefix)] == prefix:
            prefix = begun
        else:
            beginning, left = "", list(missing)
        enforced = tuple(entry for entry in segment.wanted if entry.phrases and (not entry.kind or entry in left))
        return dataclasses.replace(segment, prefix=prefix, enforced=enforced, ends_word=beginning[-1:].isalnum())

    def in_direction(self, request: TranslationRequest) -> "Engine":
        """Return this engine, with the same weights, for the languages of a request; see `Tokenizer.in_direction`."""
        tokenizer = self.tokenizer.in_direction(request.target_language, request.source_language, is_requested=True)
        if tokenizer is self.tokenizer:
            return self
        engine = copy.copy(self)
        engine.tokenizer = tokenizer
        return engine

    def check(self, request: TranslationRequest, prefix_file: str = "", required_file: str = "") -> None:
        """Raise DataError if a request is not possible, before anything is translated.

        These are not possible: more translations than the beam; samples with required phrases or terms; a prefix,
        phrase or term with unknown characters, with a forbidden phrase, or longer than the positions of the model; an
        unknown target language, or none where the model has several. Messages name the files.
        """
        self._check_search(request)
        engine = self.in_direction(request)
        forbidden = engine.target_ids(request.forbidden, "forbidden phrase")
        for term in request.glossary.terms if request.glossary else ():
            engine.target_ids([term.text], "translation", term.location, forbidden)
        engine._constraints(request, max(len(request.prefixes), len(request.required)), prefix_file, required_file)

    def _check_search(self, request: TranslationRequest) -> None:
        """Raise DataError as `check_search`, or for what has no meaning for the task or with the other requirements."""
        self.check_search(request)
        has_terms = request.glossary is not None or bool(request.keep)
        if (has_terms or request.split == "always") and not self.task.translates_sentences:
            raise DataError(
                f'split = "always", a glossary and kept spans are for translation; leave them out, as the task of this '
                f'model is "{self.tokenizer.task_name}"'
            )
        if request.split == "always" and (request.prefixes or request.required):
            raise DataError(
                'split = "always": prefixes and required phrases are for whole lines; leave one of both out'
            )
        if "target" not in self.tokenizer.context_sides:
            return
        refused = {
            "several translations per line": request.n_best > 1 and request.sampling is None,
            "prefixes": any(request.prefixes),
            "required phrases": any(request.required),
            "a glossary or kept spans": has_terms,
        }
        names = [name for name, is_set in refused.items() if is_set] + self.decoding.not_for_both_sides
        if names:
            raise DataError(
                f'{" and ".join(names)}: not for models with data.context_sides = "both", which translate the '
                'sentences before a line together with it; leave it out, or train with context_sides = "source"'
            )

    def _constraints(
        self, request: TranslationRequest, num_lines: int, prefix_file: str = "", required_file: str = ""
    ) -> list[tuple[Ids, tuple[Ids, ...]]]:
        """Return the prefix and the required phrases of each line."""
        for kind, given in (("prefixes", request.prefixes), ("lists of required phrases", request.required)):
            if given and len(given) != num_lines:
                raise DataError(f"{len(given)} {kind} for {counted(num_lines, 'line')}; give one for each line")
        forbidden = self.target_ids(request.forbidden, "forbidden phrase")
        constraints = []
        for index in range(num_lines):
            line = f"line {request.first_line + index}: "
            in_file = [f"{file}, {line}" if file else line for file in (prefix_file, required_file)]
            prefixes = self.target_ids(request.prefixes[index : index + 1], "prefix", in_file[0], forbidden)
            phrases = request.required[index] if request.required else ()
            required = self.target_ids(phrases, "required phrase", in_file[1], forbidden)
            tokens = sum(len(ids) for ids in (*prefixes, *required))
            if self._max_tokens is not None and tokens > self._max_tokens:
                raise DataError(
                    f"{in_file[0] if prefix_file else in_file[1]}prefix and required phrases have "
                    f"{counted(tokens, 'token')}, and the model has positions for {self._max_tokens}"
                )
            constraints.append((prefixes[0] if prefixes else (), tuple(required)))
        return constraints

    def target_ids(
        self, texts: Sequence[str], kind: str, location: str = "", forbidden: Sequence[Ids] = ()
    ) -> list[Ids]:
        """Return the ids of prefixes or phrases; raise DataError as in `check`, with ``kind`` and ``location``."""
        if not texts:
            return []
        texts = [*map(without_line_end, texts)]
        if bad := next((text for text in texts if SURROGATE.search(text)), None):
            raise DataError(f"{location}the {kind} {bad!r} is not valid UTF-8")
        if bad := next((text for text in texts if "\n" in text), None):
            raise DataError(f"{location}the {kind} {bad!r} has a line end in it; remove it")
        normalized = [self.tokenizer.normalize(self.task.target_part(text), "target") for text in texts]
        encoded = [tuple(ids) for ids in self.tokenizer.encode(normalized, "target")]
        for text, ids in zip(texts, encoded, strict=True):
            if UNK in ids:
                unknown = " ".join(self.tokenizer.unknown_in(text))
                raise DataError(
                    f"{location}the {kind} {text!r} has characters that are not in the model's vocabulary ({unknown})"
                )
            if not ids and kind != "prefix":
                raise DataError(f"{location}a {kind} is empty; leave it out")
            if any(contains(ids, phrase) for phrase in forbidden):
                raise DataError(f"{location}the {kind} {text!r} contains a forbidden phrase; remove one of the two")
        return encoded

    def _segments(self, lines: Sequence[str], request: TranslationRequest) -> list[Segment]:
        """Return the segments of all lines with text, in order."""
        limit = source_limit(request.max_source_tokens, self.lengths)
        longest = min(limit, self._max_tokens or limit)
        size = self.tokenizer.context
        before = [self.task.model_source(without_line_end(line)) for line in request.before[-size:]] if size else []
        texts = [*before, *lines]
        constraints: list[tuple[Ids, tuple[Ids, ...]]] = [((), ())] * len(before)
        constraints += self._constraints(request, len(lines))
        # A constraint is for its whole line. Lines of a document are split alike, as they are context of each other.
        is_split = self.task.translates_sentences and splits_sentences(request.split, self.lengths)
        is_split = is_split and not (size and (request.prefixes or request.required))
        rows = [
            self._sentences(text, request) if is_split and not any(of_line) else [text]
            for text, of_line in zip(texts, constraints, strict=True)
        ]
        normalized = [self.tokenizer.normalize(sentence, "source") for row in rows for sentence in row]
        encoded = self.tokenizer.encode(normalized, "source", self.num_threads)
        begin = longest  # the number of tokens of a source that are read
        if self.task.splits_sources:
            begin = (self.lengths and self.lengths.max_source_tokens) or max(map(len, encoded), default=0)
        forbidden = self.target_ids(request.forbidden, "forbidden phrase")
        segments: list[Segment] = []
        sources = iter(encoded)
        for line, (text, row, of_line) in enumerate(zip(texts, rows, constraints, strict=True), start=-len(before)):
            words = self.task.words(text)
            parts: list[tuple[list[int], tuple[Wanted, ...], bool]] = []
            # `row` comes first: the iteration ends with it, before an entry of the next line is taken from `sources`.
            for sentence, ids in zip(row, sources, strict=False):
                cut = cut_source(self.tokenizer, ids[:begin], longest, self.lengths) if words else []
                of_parts = [sentence] if len(cut) == 1 else [self.tokenizer.decode(part, "source") for part in cut]
                wanted = [self._wanted(part, request, forbidden) for part in of_parts]
                if len(cut) > 1:  # what a cut goes through belongs to the first part, as a whole
                    whole = self._wanted(self.tokenizer.decode(ids[:begin], "source"), request, forbidden)
                    wanted = [tuple(entry for entry in of_part if entry in whole) for of_part in wanted]
                    wanted[0] += tuple(entry for entry in whole if not any(entry in of_part for of_part in wanted))
                    if len(ids) <= begin:  # and so does what stands in the text, but not in what the tokens give back
                        given = {self.tokenizer.normalize(entry.texts[0], "target") for entry in whole}
                        for entry in self._wanted(sentence, request, forbidden):
                            if self.tokenizer.normalize(entry.texts[0], "target") not in given:
                                wanted[0] += (entry,)
                parts += [(part, of_part, len(ids) > begin) for part, of_part in zip(cut, wanted, strict=True)]
            for number, (part, of_part, is_cut) in enumerate(parts):
                num_words = len(words) if len(parts) == 1 else sum(self.tokenizer.word_starts(part, "source"))
                # The constraints of a line apply to its first segment.
                of_segment = of_line if number == 0 else ((), ())
                segments.append(Segment(line, part, num_words, 0, number, *of_segment, of_part, is_cut=is_cut))
            if size and not parts:
                segments.append(Segment(line, [], 0))  # ends the document
        return self._with_context(segments, longest) if size else segments

    def _sentences(self, line: str, request: TranslationRequest) -> list[str]:
        """Return the sentences of a line, each with the line's tag if it has one; none ends in a term or kept span."""
        tag, text = self.tokenizer.split_tag(line)
        inside = {offset for begin, end, _ in kept_spans(text, request.keep) for offset in range(begin + 1, end)}
        starts = [start for start in sentence_starts(text, self.tokenizer.languages[0]) if start not in inside]
        sentences = [text[start:stop] for start, stop in itertools.pairwise([0, *starts, len(text)])]
        if request.glossary:
            sentences = request.glossary.joined(sentences)
        sentences = [*map(str.rstrip, sentences[:-1]), sentences[-1]]
        return [f"{tag} {sentence}" for sentence in sentences] if tag else sentences

    def _wanted(self, sentence: str, request: TranslationRequest, forbidden: Sequence[Ids]) -> tuple[Wanted, ...]:
        """Return the terms and spans that a sentence contains."""
        sentence, found = self.tokenizer.split_tag(sentence)[1], []
        for terms in request.glossary.found_in(sentence) if request.glossary else ():
            phrases = [self.target_ids([term.text], "translation", term.location, forbidden)[0] for term in terms]
            found.append(Wanted(tuple(term.text for term in terms), tuple(phrases)))
        spans = {sentence[start:stop]: kind for start, stop, kind in kept_spans(sentence, request.keep)}
        for span, kind in spans.items():
            [ids] = self.tokenizer.encode([self.tokenizer.normalize(span, "target")], "target")
            is_possible = ids and UNK not in ids and not any(contains(tuple(ids), phrase) for phrase in forbidden)
            found.append(Wanted((span,), (tuple(ids),) if is_possible else (), kind))
        return tuple(found)

    def _with_context(self, segments: Sequence[Segment], longest: int) -> list[Segment]:
        """Return the segments of the lines, each after those before it in its document that fit."""
        # As `ForcedDecoder` does: no longer than in training, even where a single source may be.
        limit = (self.lengths and self.lengths.longest_sequence) or longest
        limit = min(limit, self._max_tokens or limit)
        rows, separator = [[segment.ids] for segment in segments], self.tokenizer.separator_id("source")
        found = contexts(rows, self.tokenizer.context, [separator], [limit])
        return [
            dataclasses.replace(segment, ids=[*context, *segment.ids], context=len(context))
            for segment, [context] in zip(segments, found, strict=True)
            # Negative lines are those before the text, which are context only.
            if segment.ids and segment.line >= 0
        ]

    def _translation(self, segment: Segment, ids: Sequence[int], limit: int, **details: Any) -> Translation:
        """Return the translation of a segment; ``limit``: maximum length; ``details``: fields of the torch engine."""
        own = segment.ids[segment.context :]
        unknown = own.count(UNK)
        return Translation(
            text=self.tokenizer.translation(ids),
            pieces=tuple(self.tokenizer.pieces(ids, "target")),
            hit_limit=len(ids) >= limit,
            is_short=self.task.splits_sources and is_short(len(own), len(ids), self.lengths),
            is_cut=segment.is_cut,
            # Marks of words by themselves do not count.
            is_unknown=unknown > 0 and 2 * unknown >= len(own) - self.tokenizer.pieces(own, "source").count("\u2581"),
            **details,
        )


def _join(parts: Sequence[Translation], lengths: Sequence[int], *, in_words: bool) -> Translation:
    """Join the translations of the segments of a line.

    Args:
        lengths: source tokens of each segment.
        in_words: the text is split into words, so blanks separate them in any language.
    """
    if len(parts) == 1:
        return parts[0]
    pieces: list[str] = []
    alignment: list[int] = []
    for part, before, length in zip(parts, itertools.accumulate(lengths, initial=0), lengths, strict=False):
        pieces += [*part.pieces, "</s>"]
        alignment += [*(before + index for index in part.alignment or ()), before + length - 1]
    has_alignment = parts[0].alignment is not None
    return Translation(
        text=" ".join(part.text for part in parts if part.text)
        if in_words
        else join_sentences(part.text for part in parts),
        log_prob=sum(part.log_prob for part in parts),
        score=sum(part.score for part in parts),
        pieces=tuple(pieces[:-1]),
        token_log_probs=tuple(value for part in parts for value in part.token_log_probs),
        alignment=tuple(alignment[:-1]) if has_alignment else None,
        source_pieces=tuple(piece for part in parts for piece in part.source_pieces or ()) if has_alignment else None,
        source_is_context=tuple(is_context for part in parts for is_context in part.source_is_context),
        hit_limit=any(part.hit_limit for part in parts),
        parts=len(parts),
        is_short=any(part.is_short for part in parts),
        is_unsatisfied=any(part.is_unsatisfied for part in parts),
        missing=tuple(dict.fromkeys(text for part in parts for text in part.missing)),
        is_cut=any(part.is_cut for part in parts),
        is_unknown=any(part.is_unknown for part in parts),
    )
