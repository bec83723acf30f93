"""The section [data] of a recipe, with the keys of every task."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Strict, model_validator

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.corpus_entries import (
    MANY_LANGUAGES,
    CorpusEntry,
    GeneratedCorpus,
    LocalPair,
    corpus_name,
    mixture_label,
    stated_text,
)
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.config.section import LANGUAGE_CODE, MANY, ONE_WORD, Section, default_of
from nmtkit.files import as_text

SEPARATOR = "<sep>"
"""Vocabulary entry between the sentences of a sequence with `data.context`."""
AVERAGE = "average"
"""Name in scores.json of the mean of the scores of all test sets, where there are several directions."""
TREES = ("trees", "tagged-trees")
"""Values of [data] text for which the target is a tree over the words of the source."""
LANGUAGE_MODEL, SUMMARY, TRAJECTORIES = "language-model", "summary", "trajectories"
ENVIRONMENT = "environment"
"""Corpus of episodes that `prepare` makes with random actions in `data.environment`."""
_OF_EPISODES: dict[str, Any] = {"share_vocab": False, "normalize": (), "subwords": "none"}
"""Values of keys for text where there is none."""
TASK_NAMES = ("translation", "parsing", LANGUAGE_MODEL, SUMMARY, TRAJECTORIES, *LABEL_KINDS)


Text = Literal["plain", "tokenized", "trees", "tagged-trees"]
"""Kinds of text."""


def default_task(text: str) -> str:
    """Return the task of a recipe or a model that states none."""
    return "parsing" if text in TREES else "translation"


class DataConfig(Section):
    """Corpora, languages and subwords."""

    source_language: str = Field(pattern=LANGUAGE_CODE)
    """Language code of the source, such as "en", of all corpora that do not state their own. Must be stated
    here or by all corpora, unless the task sets it."""
    target_language: str = Field(pattern=LANGUAGE_CODE)
    """Language code of the target, such as "de", of all corpora that do not state their own; see many-languages.md.
    Must be stated here or by all corpora, unless the task sets it."""
    train: tuple[CorpusEntry, ...] = Field(min_length=1)
    """Training corpora: names from the catalogue, or files as { source = "a.en.gz", target = "a.de.gz" }; see data.md.
    Or texts that a model translates, as { generate = "mono.de", model = "runs/de-en", as = "source" }; see
    back-translation.md and distillation.md. Must be stated, unless the task sets it."""
    sampling_temperature: float = Field(default=1.0, ge=1, le=1000)
    """Temperature T of sampling from the corpora of train: the share of a corpus in an epoch is proportional to (weight
    x pairs)^(1 / T). Above 1, small corpora are seen more often, large ones less often. Language models count tokens
    instead of pairs. Trajectories: all episodes with the same return count as one corpus."""
    valid: Annotated[int, Strict(), Field(le=MANY)] | tuple[CorpusEntry, ...] = ()
    """Validation corpora, or a number of pairs to hold out of train, equally many from each direction. Training pairs
    that share a side with a held-out pair are removed."""
    test: Annotated[int, Strict(), Field(le=MANY)] | tuple[CorpusEntry, ...] = ()
    """Test sets, named after the last part of the corpus name; { corpus = "sst2/test", name = "sst2" } gives another
    name. Or a number of further pairs to hold out of train in the same way: the test set "test", or with several
    directions one for each, such as "test.en-de"."""
    text: Text = "plain"
    """plain: ordinary text. tokenized: already split into words and punctuation. trees, tagged-trees: for parsing; see
    parsing.md."""
    task: str | None = Field(default=None, pattern=ONE_WORD)
    """Kind of work: "translation" (default), "parsing" (default for trees), "summary" (see summaries.md),
    "language-model" (see language-models.md), "label", "pair-label", "similarity", "choice" (see classification.md) or
    "trajectories" (see decisions.md)."""
    environment: str | None = Field(default=None, min_length=1)
    """Trajectories: "graph", "key-to-door", "key-to-door-random", or MODULE:FUNCTION; see decisions.md."""
    environment_seed: int = Field(default=1, ge=0, le=MANY)
    """Trajectories: seed of the environment itself, such as the edges of the graph."""
    episodes: int = Field(default=1000, ge=1, le=10_000_000)
    """Trajectories: number of random episodes that `prepare` makes, unless train names corpora."""
    episodes_seed: int = Field(default=1, ge=0, le=MANY)
    """Trajectories: seed of these episodes."""
    timesteps: Literal["episode", "window"] = "episode"
    """Trajectories: number the steps from the beginning of the episode, as Chen et al. 2021 do (episode), or from the
    first step that the model sees (window)."""
    best_episodes: float = Field(default=1.0, gt=0, le=1)
    """Trajectories: share of the episodes to learn from, those of the highest returns (percentile behaviour cloning).
    Below 1, episodes with the lowest return that occurs are always left out."""
    min_return: float | None = Field(default=None, ge=-1e12, le=1e12)
    """Trajectories: returns-to-go below this value are raised to it, such as those of all walks that miss the goal."""
    states: Literal["discrete", "vector"] = "discrete"
    """Trajectories: a state is a whole number or a name that occurs in training (discrete), or a list of numbers
    (vector)."""
    actions: Literal["discrete", "vector"] = "discrete"
    """Trajectories: the same for actions."""
    label_type: Literal["class", "number"] = "class"
    """Labels: one of a few names (class), or a number, learned by regression (number)."""
    max_source_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Cut each source to this number of tokens, in training and in translation."""
    sequence_length: int = Field(default=512, ge=1, le=1_000_000)
    """Tokens of a training sequence of a language model, maximum tokens of a sequence with a label, or steps that a
    model of trajectories sees."""
    context: int = Field(default=0, ge=0, le=1000)
    """Number of preceding sentences of the same document to put before each sentence; see documents.md."""
    context_sides: Literal["source", "both"] = "source"
    """source: the context is on the source side only. both: also on the target side: the model translates it, too."""
    normalize: tuple[
        Literal["nfc", "nfkc", "invisible", "blanks", "lowercase", "moses-punctuation", "moses-tokenize"], ...
    ] = ("blanks",)
    """Steps of normalisation of every line, in training and in translation, in the given order; see data.md. By default
    none for language models."""
    subwords: Literal["bpe", "unigram", "characters", "wordpiece", "gpt-bpe", "imported", "none"] = "bpe"
    """bpe, unigram, wordpiece, characters, or none (the text is already segmented). With tokenizer naming an imported
    model: gpt-bpe (of GPT) or imported (of a translation model); see data.md."""
    vocab_size: int = Field(default=37000, ge=5, le=10_000_000)
    """Number of entries in the vocabulary (without share_vocab: in each of the two), special ones included; for
    characters and none the maximum."""
    share_vocab: bool = True
    """Use one vocabulary for source and target; always false for labels and trajectories."""
    byte_fallback: bool = False
    """Split characters unseen in training into bytes, which take 256 entries, instead of replacing them with <unk>."""
    subword_sample_pairs: int = Field(default=1_000_000, ge=1, le=1_000_000_000_000)
    """Maximum number of pairs from which subwords are learned."""
    wordpiece_characters: int = Field(default=500, ge=1, le=1_114_112)
    """For wordpiece: number of characters with an entry of their own; Wu et al. 2016 use more for Asian languages."""
    segment_mark: str = Field(default="@@", pattern=ONE_WORD)
    """For subwords = "none": mark at the end of a piece that the next one continues; translations are joined there. "▁"
    (sentencepiece) stands at the beginning of words instead."""
    tokenizer: Path | None = None
    """Model (run, model folder or checkpoint) whose subwords are used instead of learning new ones, for fine-tuning."""
    treebank: Path | None = None
    """Folder of the Wall Street Journal part of the Penn Treebank; see parsing.md."""
    silver_trees: tuple[Path, ...] = ()
    """Files with trees made by other parsers; together they are the corpus "wsj/silver"."""

    @model_validator(mode="before")
    @classmethod
    def _without_source(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        task = values.get("task")
        # A list, as what stands there may be of a type that cannot be hashed, such as a list or a table.
        if task in [LANGUAGE_MODEL, TRAJECTORIES, *LABEL_KINDS]:
            values = {**defaults_of_task(task)["data"], **values}
        lists = [values.get(key) for key in ("train", "valid", "test")]
        entries = [entry for each in lists if isinstance(each, (list, tuple)) for entry in each]
        for key in ("source_language", "target_language"):
            stated = {stated_text(entry, key) for entry in entries}
            if key not in values and stated - {None}:
                values = {**values, key: stated.pop() if len(stated) == 1 else MANY_LANGUAGES}
        if task == SUMMARY and "target_language" in values:
            values = {"source_language": values["target_language"], **values}
        if isinstance(task, str) and task not in TASK_NAMES:
            raise ValueError(f'task = "{as_text(task)}": no such task; choose one of {", ".join(sorted(TASK_NAMES))}')
        return values

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        self._check_held_out()
        if self.task_name == LANGUAGE_MODEL and (self.subwords in ("wordpiece", "none") or not self.share_vocab):
            raise ValueError(
                "a language model needs share_vocab = true and subwords = bpe, unigram, characters or gpt-bpe"
            )
        if self.task_name == TRAJECTORIES:
            self._check_trajectories()
        elif foreign := [key for key in self.EPISODE_KEYS if getattr(self, key) != default_of(type(self), key)]:
            raise ValueError(f'{foreign[0]} is for task = "trajectories", not "{self.task_name}"; leave it out')
        if self.has_labels:
            self._check_labels()
        elif self.label_type == "number":
            raise ValueError(f'label_type is for tasks whose output is a label, not "{self.task_name}"; leave it out')
        if self.byte_fallback and self.subwords == "none":
            raise ValueError('byte_fallback cannot be used with subwords = "none"; leave it out')
        if self.subwords in ("gpt-bpe", "imported") and self.tokenizer is None:
            raise ValueError(f'subwords = "{self.subwords}" cannot be learned; tokenizer must name an imported model')
        if self.has_trees != (self.task_name == "parsing"):
            raise ValueError(
                f'task = "{self.task_name}" cannot be used with text = "{self.text}"; leave one of them out'
            )
        if self.max_source_tokens is not None and self.task_name in (LANGUAGE_MODEL, "parsing", *LABEL_KINDS):
            raise ValueError(f'max_source_tokens cannot be used with task = "{self.task_name}"; leave it out')
        self._check_languages()
        if "moses-tokenize" in self.normalize and (self.text != "plain" or self.subwords == "none"):
            stated = f'text = "{self.text}"' if self.text != "plain" else 'subwords = "none"'
            raise ValueError(f"moses-tokenize needs plain text, but {stated} means that words are already split")
        if self.has_trees and "lowercase" in self.normalize:
            raise ValueError('normalize: "lowercase" would change the labels of trees')
        if self.has_trees and self.source_prefixes:
            raise ValueError(
                f'source_prefix cannot be used with text = "{self.text}", whose source words are the leaves of the '
                "tree; leave it out"
            )
        names = [self.test_name(entry) for entry in self.corpora("test")]
        if len(set(names)) < len(names):
            raise ValueError(
                f"two test sets have the same name ({', '.join(names)}); give one of them another, as in "
                '{ corpus = "sst2/test", name = "sst2" }'
            )
        for entry in (*self.corpora("test"), *self.corpora("valid")):
            if isinstance(entry, GeneratedCorpus):
                raise ValueError(f"{corpus_name(entry)}: generated corpora are for data.train only")
            if not isinstance(entry, str) and (entry.weight != 1 or entry.source_prefix):
                raise ValueError(f"{corpus_name(entry)}: weight and source_prefix are for corpora of data.train only")
        self._check_generated()
        if self.context and self.max_source_tokens is not None:
            raise ValueError("context and max_source_tokens cannot be combined; leave one of them out")
        if self.context and self.task_name != "translation":
            raise ValueError(f'context is for task = "translation", not "{self.task_name}"; leave it out')
        if self.context and len(self.corpora("valid")) > 1:
            raise ValueError(
                "context needs validation text in one corpus, as documents of two corpora would run into each other; "
                "join their files with a blank line between them"
            )
        if self.task_name == LANGUAGE_MODEL:
            for text in (*self.train, *self.corpora("valid"), *self.corpora("test")):
                if isinstance(text, LocalPair) and text.source != text.target:
                    raise ValueError(f'{text.source}: a language model has no source; write {{ text = "FILE" }}')
                if isinstance(text, LocalPair) and any(text.columns):
                    raise ValueError(
                        f"{text.source}: a language model reads whole lines; write the column alone to a file, and "
                        "remove source_column and target_column"
                    )
            if self.source_prefixes:
                raise ValueError(f'source_prefix = "{self.source_prefixes[0]}": a language model has no source')
        for prefix in self.source_prefixes:
            own = ("<pad>", "<unk>", "<s>", "</s>", *([SEPARATOR] if self.context else []), *self.target_tags.values())
            if prefix in own:
                raise ValueError(f"source_prefix = {prefix!r} is a special entry of the vocabulary; use another tag")
            if "lowercase" in self.normalize and prefix != prefix.lower():
                raise ValueError(f"source_prefix = {prefix!r} has capitals, which normalize = lowercase would change")
        return self

    def _check_held_out(self) -> None:
        for key, number in self.held_out.items():
            purpose = {"valid": "validation", "test": "test"}[key]
            if self.task_name == LANGUAGE_MODEL:
                raise ValueError(f"a language model needs {purpose} texts, not a number of lines")
            if self.task_name == SUMMARY:
                raise ValueError(f"a summary needs {purpose} corpora, not a number of pairs")
            if number < 1:
                raise ValueError(
                    f"{key} is the number of pairs to hold out, at least 1; for no {purpose}"
                    f"{' set' if key == 'test' else ''}, leave {key} out"
                )
            if self.has_trees:
                raise ValueError(f'text = "{self.text}" needs {purpose} corpora with tagged trees, not a number')
            if self.context:
                raise ValueError(
                    f"context needs {purpose} text in documents: pairs held out of train are single sentences"
                )

    def _check_generated(self) -> None:
        names = [corpus_name(entry) for entry in self.train if isinstance(entry, GeneratedCorpus)]
        if names and self.task_name != "translation":
            raise ValueError(f'generate is for task = "translation", not "{self.task_name}"')
        if names and (self.context or self.subwords == "none"):
            stated = "context" if self.context else 'subwords = "none"'
            raise ValueError(f"{stated} cannot be used with generated corpora, which are sentences of plain text")
        if len(set(names)) < len(names):
            raise ValueError(f"two generated corpora have the same name ({', '.join(names)}); give each a name")

    def _check_trajectories(self) -> None:
        for key in type(self).model_fields:
            neutral = _OF_EPISODES.get(key, default_of(type(self), key))
            if key not in self.KEYS_OF_ALL and key not in self.EPISODE_KEYS and getattr(self, key) != neutral:
                raise ValueError(f'{key} is for text, not for task = "trajectories"; leave it out')
        if self.environment is None and ENVIRONMENT in self.train:
            raise ValueError('task = "trajectories" needs environment, or train = [{ text = "EPISODES.jsonl" }]')
        if self.test:
            raise ValueError('task = "trajectories" is scored by playing in an environment; leave test out')
        valid = self.corpora("valid")
        if ENVIRONMENT in valid or self.train.count(ENVIRONMENT) > 1:
            raise ValueError('"environment" may stand once, in train; for validation, hold out episodes with valid = N')
        for entry in (*self.train, *valid):
            is_text = isinstance(entry, LocalPair) and entry.source == entry.target and not any(entry.columns)
            if entry != ENVIRONMENT and not is_text:
                raise ValueError(
                    f'{corpus_name(entry)}: a corpus of episodes is stated as {{ text = "EPISODES.jsonl" }}'
                )
            if mixture_label(entry):
                raise ValueError(f"{corpus_name(entry)}: weight, source_prefix, languages are for text, not episodes")

    def _check_labels(self) -> None:
        if self.share_vocab:
            raise ValueError(f'task = "{self.task_name}": labels are no text; leave share_vocab out')
        if self.subwords in ("wordpiece", "none"):
            raise ValueError(f'task = "{self.task_name}" needs subwords = bpe, unigram, characters or gpt-bpe')
        if self.source_prefixes:
            raise ValueError(f'source_prefix cannot be used with task = "{self.task_name}"; leave it out')
        least = 1 + 2 * LABEL_KINDS[self.task_name].num_texts  # <start>, and a token and a mark of each text
        if self.sequence_length < least:
            raise ValueError(
                f'sequence_length = {self.sequence_length}: task = "{self.task_name}" needs at least {least}'
            )
        if self.label_type == "number" and LABEL_KINDS[self.task_name].chooses:
            raise ValueError(f'task = "{self.task_name}" chooses one of several texts; leave label_type = "number" out')

    def _check_languages(self) -> None:
        for entry in self._entries:
            name = f"{corpus_name(entry)}: " if mixture_label(entry) else ""
            source, target = self.direction(entry)
            if MANY_LANGUAGES in (source, target):
                side = "source" if source == MANY_LANGUAGES else "target"
                raise ValueError(
                    f"{corpus_name(entry)}: its {side}_language is not stated; state it there, as other corpora do, or "
                    "in [data] as the default of all corpora"
                )
            if source == target and self.task_name != SUMMARY:
                raise ValueError(f"{name}source_language and target_language are both {source!r}")
            if target not in self.target_languages:
                raise ValueError(f"{name}no corpus of train has the target language {target!r}")
        if not self.has_directions:
            return
        if self.task_name != "translation":
            raise ValueError(f'several languages are for task = "translation", not "{self.task_name}"')
        if len(self.source_languages) > 1 and {"moses-punctuation", "moses-tokenize"} & set(self.normalize):
            raise ValueError(
                "normalize: the rules of Moses depend on the language, and `translate` does not know which of the "
                f"source languages ({', '.join(self.source_languages)}) a text is in; leave these steps out"
            )
        for key, number in self.held_out.items():
            if number < (count := len(self.held_out_directions)):
                raise ValueError(f"{key} = {number}: take at least one pair for each of the {count} directions")
        if AVERAGE in self.tests:
            raise ValueError(f'a test set cannot be called "{AVERAGE}", the name of the scores over all directions')

    @property
    def _entries(self) -> tuple[CorpusEntry, ...]:
        return (*self.train, *self.corpora("valid"), *self.corpora("test"))

    def direction(self, entry: CorpusEntry) -> tuple[str, str]:
        """Return the source and the target language of a corpus."""
        own = [stated_text(entry, key) or getattr(self, key) for key in ("source_language", "target_language")]
        return own[0], own[1]

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """The distinct directions of data.train, in the order of the corpora."""
        return tuple(dict.fromkeys(self.direction(entry) for entry in self.train))

    @property
    def has_directions(self) -> bool:
        """True if train, valid and test have several directions together."""
        return len({self.direction(entry) for entry in self._entries}) > 1

    @property
    def held_out_directions(self) -> tuple[tuple[str, str], ...]:
        """The directions of which `valid = N` and `test = N` hold out pairs: those of corpora that are eligible."""
        eligible = (entry for number, entry in enumerate(self.train) if number not in self.ineligible)
        return tuple(dict.fromkeys(map(self.direction, eligible))) or self.directions

    @property
    def source_languages(self) -> tuple[str, ...]:
        """The distinct source languages of data.train."""
        return tuple(dict.fromkeys(source for source, _ in self.directions))

    @property
    def target_languages(self) -> tuple[str, ...]:
        """The distinct target languages of data.train."""
        return tuple(dict.fromkeys(target for _, target in self.directions))

    @property
    def target_tags(self) -> dict[str, str]:
        """The tag before the source for each target language, where there are several.

        Source: Johnson et al. 2017, "Google's Multilingual Neural Machine Translation System", section 3.
        """
        codes = self.target_languages
        return {code: f"<2{code}>" for code in codes} if len(codes) > 1 else {}

    @property
    def has_source_tags(self) -> bool:
        """True if there are several directions of an imported model, whose sources may begin with their language."""
        return self.subwords == "imported" and self.has_directions

    def in_direction(self, direction: tuple[str, str]) -> "DataConfig":
        """Return these settings with the languages of one direction."""
        return self.model_copy(update=dict(zip(("source_language", "target_language"), direction, strict=True)))

    def test_name(self, entry: CorpusEntry) -> str:
        """Return the name of a test set: as stated, else with its direction where there are several."""
        is_named = not isinstance(entry, str) and entry.name
        return corpus_name(entry) + ("" if is_named else self._suffix(self.direction(entry)))

    def _suffix(self, direction: tuple[str, str]) -> str:
        return f".{'-'.join(direction)}" if self.has_directions else ""

    def of_test(self, name: str) -> "DataConfig":
        """Return these settings with the languages of a test set."""
        return self.in_direction(self.tests.get(name, self.directions[0]))

    @property
    def tests(self) -> dict[str, tuple[str, str]]:
        """The direction of each test set, by name; pairs held out of train are a test set for each direction."""
        if isinstance(self.test, int):
            return {f"test{self._suffix(direction)}": direction for direction in self.held_out_directions}
        return {self.test_name(entry): self.direction(entry) for entry in self.test}

    def corpora(self, role: str) -> tuple[CorpusEntry, ...]:
        """Return the corpora of train, valid or test; none where pairs are held out of train instead."""
        entries: int | tuple[CorpusEntry, ...] = getattr(self, role)
        return () if isinstance(entries, int) else entries

    @property
    def held_out(self) -> dict[str, int]:
        """The numbers of pairs to hold out of train, by key: for valid, then for test."""
        return {key: number for key in ("valid", "test") if isinstance(number := getattr(self, key), int)}

    @property
    def ineligible(self) -> list[int]:
        """Indices of the training corpora of which no pair is held out: those with a tag, and generated ones."""
        return [
            number
            for number, entry in enumerate(self.train)
            if not isinstance(entry, str) and (entry.source_prefix or isinstance(entry, GeneratedCorpus))
        ]

    @property
    def source_prefixes(self) -> tuple[str, ...]:
        """The distinct tags of data.train, in the order of the corpora."""
        tags = (entry.source_prefix for entry in self.train if not isinstance(entry, str))
        return tuple(dict.fromkeys(tag for tag in tags if tag))

    EPISODE_KEYS: ClassVar = (
        "environment", "environment_seed", "episodes", "episodes_seed", "timesteps", "best_episodes", "min_return",
        "states", "actions",
    )  # fmt: skip
    """Keys that are for task = "trajectories" only."""
    KEYS_OF_ALL: ClassVar = (
        "source_language", "target_language", "train", "valid", "test", "task", "sequence_length",
        "sampling_temperature",
    )  # fmt: skip
    """Keys that are for this task as well as for others."""
    CORPUS_PATHS: ClassVar = ("treebank", "silver_trees")
    """Keys with paths of corpora; the data depend on the content of the files, not on the paths."""

    @property
    def has_trees(self) -> bool:
        """True if the target is a tree over the words of the source."""
        return self.text in TREES

    @property
    def task_name(self) -> str:
        """The stated task, else the default for the kind of text."""
        return self.task or default_task(self.text)

    @property
    def has_fields(self) -> bool:
        """True if tabs divide a line into fields, and are tokens of their own."""
        return self.task_name == SUMMARY

    @property
    def has_labels(self) -> bool:
        """True if the output is a label and no text."""
        return self.task_name in LABEL_KINDS

    @property
    def head(self) -> str:
        """The head of the task's models, see `ModelConfig.head`."""
        if self.task_name == TRAJECTORIES:
            return f"{self.actions}-action"
        if not self.has_labels:
            return "none"
        return "number" if self.label_type == "number" else LABEL_KINDS[self.task_name].head

    @property
    def splits_scripts(self) -> bool:
        """True if subwords may end where the writing system changes; a bracket and its label are one piece."""
        return not self.has_trees


def defaults_of_task(task: Any) -> dict[str, dict[str, Any]]:
    """Return the defaults that depend on the task, by section and key; ``task`` may be anything that stands there."""
    data = {key: default_of(DataConfig, key) for key in _OF_EPISODES}
    cleaning = {key: default_of(CleaningConfig, key) for key in ("max_tokens", "max_characters")}
    if task in [LANGUAGE_MODEL, SUMMARY, *LABEL_KINDS]:  # no document is too long, nor a line that is cut
        cleaning = dict.fromkeys(cleaning, 0)
    if task == LANGUAGE_MODEL:
        # ISO 639-2: undetermined.
        data |= {"source_language": "und", "normalize": ()}
        cleaning["source_equals_target"] = "keep"
    elif task == TRAJECTORIES:
        data |= {"source_language": "und", "target_language": "zxx", "train": (ENVIRONMENT,), **_OF_EPISODES}
    elif task in [*LABEL_KINDS]:
        data |= {"target_language": "zxx", "share_vocab": False}  # ISO 639-2: no linguistic content
    return {"data": data, "cleaning": cleaning}
