"""The sections and keys of a recipe, with the defaults of the paper's base model and training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    TypeAdapter,
    field_validator,
    model_serializer,
    model_validator,
)

from nmtkit.compression import without_suffix

LANGUAGE_CODE = r"^[a-z]{2,3}(_[A-Za-z]+)?$"
_ONE_WORD = r"^\S*$"
_FILE_NAME = r"^[^/\\.][^/\\]*$"
VALUE_RULES = {
    LANGUAGE_CODE: 'must be a language code, such as "en" or "zh_Hans"',
    _ONE_WORD: "must be one word without blanks",
    _FILE_NAME: "must be a name without slashes that does not begin with a full stop",
}
"""Patterns of values, and the message for a value that does not match."""
MANY = 1_000_000_000
"""Upper bound of numbers that need no smaller one: above any real use, and safe to compute with."""
ENDING_SCHEDULES = ("cosine", "linear")
"""Learning rate schedules that depend on max_steps."""


class _Section(BaseModel):
    """A section of a recipe, read-only; unknown keys and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_and_nul(cls, value: Any, info: Any) -> Any:
        """Refuse true and false as numbers, which pydantic would read as 1 and 0, and NUL characters in text."""
        kind = cls.model_fields[str(info.field_name)].annotation
        is_number = not {int, float}.isdisjoint((kind, *get_args(kind)))
        given = value if isinstance(value, (list, tuple)) else [value]
        if is_number and any(isinstance(entry, bool) for entry in given):
            raise ValueError("must be a number, not true or false")
        if any("\0" in entry for entry in given if isinstance(entry, str)):
            raise ValueError("holds a NUL character")
        return value


MANY_LANGUAGES = "mul"
"""Code of a side with several languages (ISO 639-2)."""


class _InMixture(_Section):
    """Settings that every corpus can have; weight and source_prefix are for data.train only."""

    source_language: str | None = Field(default=None, pattern=LANGUAGE_CODE)
    """Language of the source of this corpus; by default that of [data]."""
    target_language: str | None = Field(default=None, pattern=LANGUAGE_CODE)
    """Language of the target of this corpus; by default that of [data]."""

    weight: float = Field(default=1.0, gt=0, le=1000)
    """Number of times each pair is seen per epoch. 2: twice. 0.5: half of the pairs in each epoch, in turn."""
    source_prefix: str = Field(default="", pattern=_ONE_WORD, max_length=40)
    """A tag such as "<bt>", added before each source sentence as a token of its own."""


class NamedCorpus(_InMixture):
    """A corpus of the catalogue, with a weight, a tag or another name."""

    corpus: str
    """Name in the catalogue."""
    name: str | None = Field(default=None, pattern=_FILE_NAME)
    """Name of a test set in score tables; by default the part of the corpus name after its last slash."""


class LocalPair(_InMixture):
    """A parallel corpus in files of your own, line-aligned; docs/data.md describes the formats."""

    source: Path
    """File with the source side, or ARCHIVE:MEMBER; both sides may be in one file (.tmx, .tsv)."""
    target: Path
    """File with the target side."""
    source_column: int | tuple[int, ...] | None = None
    """Column of the source side, counted from 1, or a list such as [2, 3], whose cells are joined by tabs; a file with
    a stated column is read as a tab-separated table. The default for .tsv files is 1."""
    target_column: int | None = Field(default=None, ge=1, le=10_000)
    """Column of the target side. The default for .tsv files is 2."""
    name: str | None = Field(default=None, pattern=_FILE_NAME)
    """Name for messages and score tables, without slashes; by default the name of the source file."""

    @field_validator("source_column", mode="before")
    @classmethod
    def _check_columns(cls, value: Any) -> Any:
        columns = value if isinstance(value, (list, tuple)) else [value]
        if value is not None and not (
            columns and all(type(column) is int and 0 < column <= 10_000 for column in columns)
        ):
            raise ValueError("must be a column from 1 to 10000, or a list of columns such as [2, 3]")
        return value

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, values: Any) -> Any:
        """Take { text = "FILE" }, for texts without a source, as both sides."""
        if not isinstance(values, dict) or "text" not in values:
            return values
        if stated := {"source", "target"} & set(values):
            raise ValueError(f"text and {' and '.join(sorted(stated))} exclude each other")
        return {**{key: value for key, value in values.items() if key != "text"}, "source": values["text"],
                "target": values["text"]}  # fmt: skip


class Noise(_Section):
    """Noise on the source sentences of a generated corpus. Source: Edunov et al. 2018, section 3."""

    drop: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a word is left out."""
    mask: float = Field(default=0.0, ge=0, le=1)
    """Probability that a word is replaced by a filler."""
    shuffle: int = Field(default=0, ge=0, le=1000)
    """Maximum number of positions that a word moves."""


class GeneratedCorpus(_InMixture):
    """A text and its translation by a model, made by `prepare`; docs/back-translation.md describes the keys."""

    generate: Path
    """File to translate, plain or compressed."""
    model: tuple[Path, ...] = Field(min_length=1, max_length=100)
    """Model (model folder, run or checkpoint) that translates it, or a list: an ensemble."""
    side: Literal["source", "target"] = Field(alias="as")
    """Side of the corpus that is generated; `as` in recipes."""
    from_: str | None = Field(default=None, alias="from", pattern=_ONE_WORD)
    """Language of the text in the codes of the model, by default that of the corpus; `from` in recipes."""
    to: str | None = Field(default=None, pattern=_ONE_WORD)
    """Language of the translations in the codes of the model, by default that of the corpus."""
    beam: int | None = Field(default=None, ge=1, le=10_000)
    """Beam size; by default that of the model."""
    n_best: int = Field(default=1, ge=1, le=10_000)
    """Number of translations per line, each of which makes a pair."""
    sample: bool = False
    """Sample translations instead of searching for the best."""
    temperature: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Sampling temperature."""
    top_k: int = Field(default=0, ge=0, le=MANY)
    """Sample from this number of most probable tokens; 0: all."""
    top_p: float = Field(default=1.0, ge=0, le=1)
    """Nucleus sampling with this probability; 1: all."""
    seed: int = Field(default=1, ge=0, le=MANY)
    """Seed of samples and noise."""
    noise: Noise | None = None
    """Noise on the source."""
    name: str | None = Field(default=None, pattern=_FILE_NAME)
    """Name for messages and files; by default the name of the file to translate."""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, values: Any) -> Any:
        """Take `prefix` for source_prefix, and one model for a list of one."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        if {"prefix", "source_prefix"} <= values.keys():
            raise ValueError("prefix and source_prefix are the same key; state one")
        if "prefix" in values:
            values["source_prefix"] = values.pop("prefix")
        if isinstance(values.get("model"), str):
            values["model"] = [values["model"]]
        return values

    @model_validator(mode="after")
    def _check_search(self) -> "GeneratedCorpus":
        if self.sample and self.beam is not None:
            raise ValueError("sampling uses no beam; n_best is the number of samples, so leave beam out")
        if not self.sample and (self.temperature, self.top_k, self.top_p) != (1.0, 0, 1.0):
            raise ValueError("temperature, top_k and top_p need sample = true")
        return self

    @model_serializer(mode="wrap")
    def _with_as(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {{"side": "as", "from_": "from"}.get(key, key): value for key, value in handler(self).items()}


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
HEADS = {"label": "classes", "pair-label": "classes", "similarity": "classes", "choice": "choice"}
"""The tasks whose output is a label and no text, and the head of their models (`ModelConfig.head`)."""
TASK_NAMES = ("translation", "parsing", LANGUAGE_MODEL, SUMMARY, TRAJECTORIES, *HEADS)


def default_task(text: str) -> str:
    """Return the task of a recipe or a model that states none."""
    return "parsing" if text in TREES else "translation"


def _corpora(values: Any) -> list[Any]:
    """Return the lists of corpora in the unchecked values of [data]."""
    found = [values.get(key) for key in ("train", "valid", "test")] if isinstance(values, dict) else []
    return [entries for entries in found if isinstance(entries, (list, tuple))]


def _stated(entry: Any, key: str) -> str | None:
    """Return a text that a corpus itself states, or None."""
    value = entry.get(key) if isinstance(entry, dict) else getattr(entry, key, None)
    return value if isinstance(value, str) else None


def _kind_of_entry(value: Any) -> str:
    if isinstance(value, dict):
        return "GeneratedCorpus" if "generate" in value else "NamedCorpus" if "corpus" in value else "LocalPair"
    return type(value).__name__ if isinstance(value, _InMixture) else "name"


CorpusEntry = Annotated[
    Annotated[str, Tag("name")]
    | Annotated[NamedCorpus, Tag("NamedCorpus")]
    | Annotated[LocalPair, Tag("LocalPair")]
    | Annotated[GeneratedCorpus, Tag("GeneratedCorpus")],
    Discriminator(_kind_of_entry),
]


def _default(section: type[_Section], key: str) -> Any:
    return section.model_fields[key].default


class DataConfig(_Section):
    """Corpora, languages and subwords."""

    source_language: str = Field(pattern=LANGUAGE_CODE)
    """Language code of the source, such as "en", of all corpora that do not state their own."""
    target_language: str = Field(pattern=LANGUAGE_CODE)
    """Language code of the target, such as "de", of all corpora that do not state their own; see many-languages.md."""
    train: tuple[CorpusEntry, ...] = Field(min_length=1)
    """Training corpora: names from the catalogue, or files as { source = "a.en.gz", target = "a.de.gz" }; see data.md.
    Or texts that a model translates, as { generate = "mono.de", model = "runs/de-en", as = "source" }; see
    back-translation.md and distillation.md."""
    sampling_temperature: float = Field(default=1.0, ge=1, le=1000)
    """Temperature T of sampling from the corpora of train: the share of a corpus in an epoch is proportional to (weight
    x pairs)^(1 / T). 1: as they are. More: small corpora are seen more often, large ones less. With task =
    "trajectories", episodes of equal return are in place of a corpus."""
    valid: Annotated[int, Strict(), Field(le=MANY)] | tuple[CorpusEntry, ...] = ()
    """Validation corpora, or a number of pairs to hold out of train, in equal shares of its directions, from which
    copies of them are removed as well."""
    test: Annotated[int, Strict(), Field(le=MANY)] | tuple[CorpusEntry, ...] = ()
    """Test sets, called by the part of their name after the last slash; { corpus = "sst2/test", name = "sst2" } gives
    another name. Or a number of other pairs to hold out of train in the same way; this test set is called "test"."""
    text: Literal["plain", "tokenized", "trees", "tagged-trees"] = "plain"
    """plain: ordinary text. tokenized: words are separated by blanks. trees, tagged-trees: for parsing; see
    parsing.md."""
    task: str | None = Field(default=None, pattern=_ONE_WORD)
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
    """Trajectories: count steps from the beginning of the episode, as published (episode), or from the first step that
    the model sees (window)."""
    best_episodes: float = Field(default=1.0, gt=0, le=1)
    """Trajectories: share of the episodes to learn from, those of the highest returns (percentile behaviour cloning).
    Below 1, episodes with the lowest return of all are left out as well."""
    min_return: float | None = Field(default=None, ge=-1e12, le=1e12)
    """Trajectories: lower returns-to-go count as this value, such as that of all walks that miss the goal."""
    states: Literal["discrete", "vector"] = "discrete"
    """Trajectories: whole numbers, or names that occur in training (discrete), or lists of numbers (vector)."""
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
    """Number of sentences of the same document to put before each sentence; see documents.md."""
    context_sides: Literal["source", "both"] = "source"
    """source: the context is on the source side. both: the model also generates its translation."""
    normalize: tuple[Literal["nfc", "nfkc", "blanks", "lowercase", "moses-punctuation", "moses-tokenize"], ...] = (
        "blanks",
    )
    """Steps of normalisation of every line, in training and in translation, in the given order; see data.md."""
    subwords: Literal["bpe", "unigram", "characters", "wordpiece", "gpt-bpe", "imported", "none"] = "bpe"
    """Method: bpe, unigram, wordpiece, characters, none (the text is already segmented), or those of an imported model,
    which tokenizer names: gpt-bpe of a GPT, imported of a translation model; see data.md."""
    vocab_size: int = Field(default=37000, ge=5, le=10_000_000)
    """Number of entries in the vocabulary (without share_vocab: in each of the two), special ones included."""
    share_vocab: bool = True
    """Use one vocabulary for source and target."""
    byte_fallback: bool = False
    """Split characters unseen in training into bytes, which take 256 entries, instead of replacing them with <unk>."""
    subword_sample_pairs: int = Field(default=1_000_000, ge=1, le=1_000_000_000_000)
    """Maximum number of pairs from which subwords are learned."""
    wordpiece_characters: int = Field(default=500, ge=1, le=1_114_112)
    """For wordpiece: number of characters with an entry of their own; Wu et al. 2016 use more for Asian languages."""
    segment_mark: str = "@@"
    """For subwords = "none": mark at the end of a piece that continues; translations are joined at it."""
    tokenizer: Path | None = None
    """Model (run, model folder or checkpoint) whose subwords are used instead of learning new ones, for fine-tuning."""
    treebank: Path | None = None
    """Folder of the Wall Street Journal part of the Penn Treebank; see parsing.md."""
    silver_trees: tuple[Path, ...] = ()
    """Files with trees made by other parsers; together they are the corpus "wsj/silver"."""

    @model_validator(mode="before")
    @classmethod
    def _without_source(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("task") == LANGUAGE_MODEL:
            return {"source_language": "und", "normalize": (), **values}
        if isinstance(values, dict) and values.get("task") == SUMMARY and "target_language" in values:
            return {"source_language": values["target_language"], **values}
        if isinstance(values, dict) and values.get("task") in HEADS:
            return {"target_language": "zxx", "share_vocab": False, **values}  # ISO 639-2: no linguistic content
        if isinstance(values, dict) and values.get("task") == TRAJECTORIES:
            languages = {"source_language": "und", "target_language": "zxx"}
            return {**languages, "train": [ENVIRONMENT], **_OF_EPISODES, **values}
        for key in ("source_language", "target_language"):
            stated = {_stated(entry, key) for entries in _corpora(values) for entry in entries}
            if key not in values and stated - {None}:
                values = {**values, key: stated.pop() if len(stated) == 1 else MANY_LANGUAGES}
        if isinstance(values, dict) and isinstance(task := values.get("task"), str) and task not in TASK_NAMES:
            raise ValueError(f'task = "{task}": no such task; choose one of {", ".join(sorted(TASK_NAMES))}')
        return values

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        self._check_held_out()
        if self.task_name == LANGUAGE_MODEL and (self.subwords in ("wordpiece", "none") or not self.share_vocab):
            raise ValueError("a language model needs share_vocab = true and subwords = bpe, unigram or characters")
        if self.task_name == TRAJECTORIES:
            self._check_trajectories()
        elif foreign := [key for key in self.EPISODE_KEYS if getattr(self, key) != _default(type(self), key)]:
            raise ValueError(f'{foreign[0]} is for task = "trajectories", not "{self.task_name}"; leave it out')
        if self.has_labels:
            self._check_labels()
        elif self.label_type == "number":
            raise ValueError(f'label_type is for tasks whose output is a label, not "{self.task_name}"; leave it out')
        if self.subwords in ("gpt-bpe", "imported") and self.tokenizer is None:
            raise ValueError(f'subwords = "{self.subwords}" cannot be learned; tokenizer must name an imported model')
        if self.task_name == SUMMARY and self.has_trees:
            raise ValueError(f'task = "summary" cannot be used with text = "{self.text}"')
        if self.max_source_tokens is not None and self.task_name in (LANGUAGE_MODEL, "parsing", *HEADS):
            raise ValueError(f'max_source_tokens cannot be used with task = "{self.task_name}"; leave it out')
        self._check_languages()
        if "moses-tokenize" in self.normalize and (self.text != "plain" or self.subwords == "none"):
            stated = f'text = "{self.text}"' if self.text != "plain" else 'subwords = "none"'
            raise ValueError(f"moses-tokenize needs plain text, but {stated} means that words are already split")
        if self.has_trees and "lowercase" in self.normalize:
            raise ValueError('normalize: "lowercase" would change the labels of trees')
        if self.has_trees and self.source_prefixes:
            raise ValueError(
                f'source_prefix cannot be used with text = "{self.text}", whose source words are leaves; leave it out'
            )
        names = [self.test_name(entry) for entry in self.corpora("test")]
        if len(set(names)) < len(names):
            raise ValueError(
                f"two test sets have the same name ({', '.join(names)}); give one a name: "
                '{ corpus = "..." or source = "...", name = "..." }'
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
            if self.source_prefixes:
                raise ValueError(f'source_prefix = "{self.source_prefixes[0]}": a language model has no source')
        for prefix in self.source_prefixes:
            own = ("<pad>", "<unk>", "<s>", "</s>", *([SEPARATOR] if self.context else []), *self.target_tags.values())
            if prefix in own:
                raise ValueError(f"source_prefix = {prefix!r} is a symbol of every vocabulary; use another tag")
            if "lowercase" in self.normalize and prefix != prefix.lower():
                raise ValueError(f"source_prefix = {prefix!r} has capitals, which normalize = lowercase would change")
        return self

    def _check_held_out(self) -> None:
        """Raise ValueError for a number of pairs to hold out of train that contradicts other keys."""
        for key, number in self.held_out.items():
            purpose = {"valid": "validation", "test": "test"}[key]
            if self.task_name == LANGUAGE_MODEL:
                raise ValueError(f"a language model needs {purpose} texts, not a number of lines")
            if self.task_name == SUMMARY:
                raise ValueError(f"a summary needs {purpose} corpora, not a number of pairs")
            if number < 1:
                raise ValueError(
                    f"{key} is the number of pairs to hold out, at least 1; leave it out for no {purpose}"
                    f"{' set' if key == 'test' else ''}"
                )
            if self.has_trees:
                raise ValueError(f'text = "{self.text}" needs {purpose} corpora with tagged trees, not a number')
            if self.context:
                raise ValueError(
                    f"context needs {purpose} text in one corpus: pairs held out of train are no documents"
                )

    def _check_generated(self) -> None:
        """Raise ValueError for generated corpora that contradict other keys."""
        names = [corpus_name(entry) for entry in self.train if isinstance(entry, GeneratedCorpus)]
        if names and self.task_name != "translation":
            raise ValueError(f'generate is for task = "translation", not "{self.task_name}"')
        if names and (self.context or self.subwords == "none"):
            stated = "context" if self.context else 'subwords = "none"'
            raise ValueError(f"{stated} cannot be used with generated corpora, which are sentences in plain words")
        if len(set(names)) < len(names):
            raise ValueError(f"two generated corpora have the same name ({', '.join(names)}); give each a name")

    def _check_trajectories(self) -> None:
        """Raise ValueError for keys that contradict a task of episodes."""
        for key in type(self).model_fields:
            neutral = _OF_EPISODES.get(key, _default(type(self), key))
            if key not in self.KEYS_OF_ALL and key not in self.EPISODE_KEYS and getattr(self, key) != neutral:
                raise ValueError(f'{key} is for text, not for task = "trajectories"; leave it out')
        if self.environment is None and ENVIRONMENT in self.train:
            raise ValueError('task = "trajectories" needs environment, or train = [{ text = "EPISODES.jsonl" }]')
        if self.test:
            raise ValueError('task = "trajectories" is scored by playing in an environment; leave test out')
        valid = self.corpora("valid")
        if ENVIRONMENT in valid or self.train.count(ENVIRONMENT) > 1:
            raise ValueError('"environment" stands once in train; for validation hold episodes out with valid = N')
        for entry in (*self.train, *valid):
            if entry != ENVIRONMENT and not (isinstance(entry, LocalPair) and entry.source == entry.target):
                raise ValueError(f'{corpus_name(entry)}: a corpus of episodes is {{ text = "EPISODES.jsonl" }}')
            if mixture_label(entry):
                raise ValueError(f"{corpus_name(entry)}: weight and source_prefix are for text, not for episodes")

    def _check_labels(self) -> None:
        """Raise ValueError for keys that contradict a task whose output is a label."""
        if self.share_vocab:
            raise ValueError(f'task = "{self.task_name}": labels are no text; leave share_vocab out')
        if self.subwords in ("wordpiece", "none") or self.has_trees:
            raise ValueError(
                f'task = "{self.task_name}" needs subwords = bpe, unigram or characters, and text, not trees'
            )
        if self.source_prefixes:
            raise ValueError(f'source_prefix cannot be used with task = "{self.task_name}"; leave it out')
        least = 3 if self.task_name == "label" else 5
        if self.sequence_length < least:
            raise ValueError(
                f'sequence_length = {self.sequence_length}: task = "{self.task_name}" needs at least {least}'
            )
        if self.label_type == "number" and self.task_name == "choice":
            raise ValueError('task = "choice" chooses one of several texts; leave label_type = "number" out')

    def _check_languages(self) -> None:
        """Raise ValueError for corpora without languages, or with languages that contradict each other or the task."""
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
        own = [_stated(entry, key) or getattr(self, key) for key in ("source_language", "target_language")]
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
        return self.task_name in HEADS

    @property
    def head(self) -> str:
        """The head of the task's models, see `ModelConfig.head`."""
        if self.task_name == TRAJECTORIES:
            return f"{self.actions}-action"
        return "number" if self.label_type == "number" else HEADS.get(self.task_name, "none")

    @property
    def splits_scripts(self) -> bool:
        """True if subwords may end where the writing system changes; a bracket and its label are one piece."""
        return not self.has_trees


class CleaningConfig(_Section):
    """Limits on training pairs, and an action (error, drop, fix or keep) for each kind of problem; see data.md."""

    max_tokens: int = Field(default=256, ge=0, le=1_000_000)
    """Maximum number of subword tokens on each side, without the end symbol; 0: no limit."""
    max_characters: int = Field(default=5000, ge=0, le=MANY)
    """Maximum number of characters on each side, checked before subwords are learned; 0: no limit."""
    max_ratio: float = Field(default=0.0, ge=0, le=1_000_000)
    """Maximum ratio of the longer to the shorter side, in tokens; 0: no limit."""
    line_count: Literal["error", "drop"] = "error"
    """The sides of a corpus have different numbers of lines. drop: leave out the extra lines at the end."""
    invalid_utf8: Literal["error", "drop", "fix"] = "error"
    """Bytes that are not UTF-8. fix: read them as Windows-1252."""
    line_separator: Literal["error", "drop", "fix", "keep"] = "keep"
    """U+2028, U+2029, U+0085, VT, FF or CR inside a line. fix: replace by a blank."""
    bom: Literal["error", "drop", "fix", "keep"] = "fix"
    """Byte-order marks (U+FEFF). fix: remove. One at the beginning of a file is always removed."""
    control_character: Literal["error", "drop", "fix", "keep"] = "keep"
    """Other control characters, except tabs. fix: remove."""
    one_sided_blank: Literal["error", "drop"] = "drop"
    """Exactly one side is blank."""
    both_blank: Literal["error", "drop"] = "drop"
    """Both sides are blank."""
    html_entity: Literal["error", "drop", "fix", "keep"] = "keep"
    """HTML entities such as `&amp;`. fix: replace by the character."""
    markup: Literal["error", "drop", "fix", "keep"] = "keep"
    """Tags such as `<b>`. fix: remove; a tag between words, such as `<br>`, becomes a blank."""
    too_long: Literal["error", "drop"] = "drop"
    """One side is longer than max_tokens or max_characters."""
    length_ratio: Literal["error", "drop", "keep"] = "drop"
    """The lengths of the sides differ by more than max_ratio. If that is 0, ratios above 9 (in characters) are
    counted."""
    source_equals_target: Literal["error", "drop", "keep"] = "keep"
    """Both sides are the same text. A corpus with mostly such pairs is refused unless the recipe states this key."""
    duplicate_pair: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of an earlier pair. drop: keep only the first."""
    duplicate_source: Literal["error", "drop", "keep"] = "keep"
    """The source equals that of an earlier pair. drop: keep only the first that is not left out for another reason."""
    wrong_script: Literal["error", "drop", "keep"] = "keep"
    """Most letters of one side are not in the writing system of its language."""
    swapped_sides: Literal["error", "drop", "fix", "keep"] = "keep"
    """Each side is in the writing system of the other side's language. fix: exchange the sides."""
    wrong_language: Literal["off", "error", "drop", "keep"] = "off"
    """One side is in another language than stated, as py3langid identifies it (pip install 'nmtkit[langid]'). off: not
    checked, as it takes 0.3 ms per pair."""
    overlap_valid: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of a pair in a validation set."""
    overlap_test: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of a pair in a test set."""

    @model_validator(mode="after")
    def _check(self) -> "CleaningConfig":
        if self.length_ratio == "error" and not self.max_ratio:
            raise ValueError('length_ratio = "error" needs a max_ratio above 0')
        return self

    def action(self, rule: str) -> str:
        """Return the action for a rule; without max_ratio, length_ratio only counts."""
        if rule == "length_ratio" and not self.max_ratio:
            return "keep"
        return str(getattr(self, rule))


class ModelConfig(_Section):
    """Size and structure of the Transformer, with everything that Table 3 of the paper varies."""

    architecture: Literal["encoder-decoder", "decoder"] = "encoder-decoder"
    """encoder-decoder: the paper's Transformer. decoder: a decoder alone, which reads source and target as one sequence
    (T-D of Liu et al. 2018); it needs share_vocab and has no encoder_layers."""
    source_attention: Literal["causal", "full"] = "causal"
    """Decoder alone: a position of the source sees earlier ones only, as in Liu et al. (causal), or the whole source
    (full); then [training] source_loss must be 0."""
    encoder_layers: int = Field(default=6, ge=1, le=1_000)
    """Number of encoder layers."""
    decoder_layers: int = Field(default=6, ge=1, le=1_000)
    """Number of decoder layers."""
    d_model: int = Field(default=512, ge=2, le=32_768)
    """Width of the embeddings and of the output of every sub-layer."""
    d_ff: int = Field(default=2048, ge=1, le=1_048_576)
    """Inner width of the feed-forward sub-layers."""
    num_heads: int = Field(default=8, ge=1, le=4_096)
    """Number of attention heads."""
    d_k: int | None = Field(default=None, ge=1, le=65_536)
    """Width of the queries and keys of one head; by default d_model / num_heads."""
    d_v: int | None = Field(default=None, ge=1, le=65_536)
    """Width of the values of one head; by default d_model / num_heads."""
    self_attention: tuple[Literal["full", "local", "compressed", "window"], ...] = Field(default=(), max_length=1000)
    """Self-attention of each layer of the encoder, or of a decoder alone; a shorter list repeats. full: all positions.
    local: only the own block. compressed: keys and values are compressed by a strided convolution (Liu et al. 2018).
    window: see attention_window. By default full, or window with attention_window."""
    local_block: int = Field(default=256, ge=1, le=1_000_000)
    """Local attention: number of positions in a block."""
    local_previous_block: bool = False
    """Local attention: also see the block before, as in the authors' code but not their paper."""
    compression: int = Field(default=3, ge=1, le=1_000)
    """Compressed attention: kernel size and stride of the convolution."""
    attention_window: int | None = Field(default=None, ge=1, le=1_000_000)
    """Restrict self-attention to a window of this number of positions, for long texts; see paper.md."""
    norm: Literal["post", "pre"] = "post"
    """post: LayerNorm(x + Sublayer(x)), as in the paper. pre: x + Sublayer(LayerNorm(x)) and a norm after each
    stack."""
    positions: Literal["sinusoidal", "fairseq", "learned"] = "sinusoidal"
    """Position encodings: sinusoidal as in the paper, or learned (Table 3, row E). fairseq: sinusoidal as in fairseq
    and M2M-100, with slightly different frequencies and positions counted from 2."""
    max_positions: int = Field(default=1024, ge=1, le=1_000_000)
    """Number of learned positions. Sinusoidal positions have no limit."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation of the feed-forward sub-layers; gelu is its tanh approximation, as in GPT. silu: x * sigmoid(x), also
    called swish, as in OPUS-MT."""
    embedding_scale: bool = True
    """Multiply embeddings by sqrt(d_model) before positions are added, as in the paper."""
    output_bias: bool = False
    """Add a bias to the logit of each vocabulary entry, as Marian does; the paper has none."""
    decoder_start: Literal["bos", "eos"] = "bos"
    """Symbol whose embedding the decoder reads first: bos, the begin symbol; or eos, the end symbol, as in fairseq and
    M2M-100."""
    initialization: Literal["xavier", "normal"] = "xavier"
    """Initial weights. xavier: linear layers Xavier-uniform, embeddings N(0, 1/d_model). normal: all N(0, 0.02^2), as
    in GPT. Biases are 0."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout after each sub-layer and on the sum of embedding and position."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the attention weights; 0 in the paper."""
    ffn_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout after the activation; 0 in the paper."""
    share_embeddings: Literal["all", "decoder", "none"] = "all"
    """all: source, target and output share one matrix. decoder: target and output share one. none: three matrices."""
    head: Literal["none", "classes", "choice", "number", "discrete-action", "vector-action"] = "none"
    """Set by [data] task: linear layer for labels (classes, choice, number) or actions (discrete-action,
    vector-action)."""
    vector_states: bool = False
    """Trajectories: states are vectors; set by [data] states."""
    returns: bool = True
    """Trajectories: the model sees the return-to-go of each step. false: behaviour cloning."""
    return_values: int = Field(default=0, ge=0, le=10_000)
    """Trajectories: predict the return-to-go of each step, out of at most this number of different values; see
    decisions.md. 0: off."""

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if self.d_model % self.num_heads and (self.d_k is None or self.d_v is None):
            raise ValueError(
                f"d_model = {self.d_model} is not a multiple of num_heads = {self.num_heads}; state d_k and d_v, "
                "or choose another number of heads"
            )
        if self.positions != "learned" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        if self.positions == "fairseq" and self.d_model < 4:
            raise ValueError('positions = "fairseq" needs a d_model of at least 4')
        if self.decoder_start == "eos" and self.is_joined:
            raise ValueError('decoder_start = "eos" needs architecture = "encoder-decoder"')
        if self.output_bias and self.has_actions:
            raise ValueError("output_bias is for models that generate text; leave it out")
        if "window" in self.self_attention and self.attention_window is None:
            raise ValueError('self_attention = "window" needs attention_window, the number of positions')
        if self.is_joined and self.source_attention == "full" and "compressed" in self.self_attention:
            raise ValueError(
                'self_attention = "compressed" needs source_attention = "causal": a group of compressed positions may '
                "hold the end of the source and the beginning of the target"
            )
        return self

    @property
    def is_joined(self) -> bool:
        """True if source and target stand in one sequence."""
        return self.architecture == "decoder"

    def embedding_sizes(self, source_vocab: int, target_vocab: int) -> dict[str, int]:
        """Return the entries of each embedding matrix."""
        if self.has_actions:
            return {}  # see trajectory.py
        if self.is_joined:
            vocab = target_vocab if self.head == "none" else source_vocab
            return {"shared": vocab} if self.share_embeddings != "none" else dict.fromkeys(("target", "output"), vocab)
        if self.share_embeddings == "all":
            return {"shared": target_vocab}
        sizes = {"source": source_vocab, "target": target_vocab}
        return sizes if self.share_embeddings == "decoder" else {**sizes, "output": target_vocab}

    def head_size(self, target_vocab: int) -> int:
        """Return the number of outputs of the head; the vocabulary of the target has four special entries."""
        if self.has_actions:
            return target_vocab - 4
        return {"none": 0, "classes": target_vocab - 4}.get(self.head, 1)

    def linear_columns(self, source_vocab: int, target_vocab: int) -> int:
        """Return the columns of all linear layers outside of the stacks, but for embeddings, per label or step."""
        own = self.head_size(target_vocab)
        if self.has_actions:
            own += self.return_values or int(self.returns)
            own += (source_vocab - 4) * self.vector_states + (target_vocab - 4) * (self.head == "vector-action")
        return own

    @property
    def has_actions(self) -> bool:
        """True if the model predicts actions from episodes."""
        return self.head.endswith("-action")

    def attention_kind(self, layer: int) -> Literal["full", "local", "compressed", "window"]:
        """Return the self-attention of a layer of the stack that reads the source."""
        if self.self_attention:
            return self.self_attention[layer % len(self.self_attention)]
        return "full" if self.attention_window is None else "window"

    @property
    def key_width(self) -> int:
        """d_k, by default d_model / num_heads."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v, by default d_model / num_heads."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads


EXCLUSIVE_KEYS = (
    ("validate_every_steps", "validate_every_epochs", "validate_every_minutes"),
    ("checkpoint_every_steps", "checkpoint_every_epochs", "checkpoint_every_minutes"),
    ("patience_epochs", "patience_validations"),
)
"""Groups of keys of [training] that exclude each other; the one stated last replaces the others."""


class TrainingConfig(_Section):
    """Optimiser, schedule, batches, limits, validation and checkpoints."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    """Random seed for initial weights, order of batches and dropout."""
    tokens_per_update: int = Field(default=25000, ge=1, le=MANY)
    """Maximum number of target tokens per update, over all devices, without padding."""
    sequences_per_update: int = Field(default=0, ge=0, le=MANY)
    """Number of pairs (or sequences) per update, in place of tokens_per_update. 0: off."""
    lengths_per_update: int = Field(default=1, ge=1, le=1_000_000)
    """Number of groups of similar length per update. 1: all pairs of an update have about the same length, which
    minimises padding. More: updates differ less from each other."""
    tokens_per_pass: int = Field(default=0, ge=0, le=MANY)
    """Size of a micro-batch: maximum number of target (or source) tokens on one device, with padding. 0: as many as fit
    into a CUDA device; 4,096 on a CPU, 16,384 elsewhere."""
    optimizer: Literal["adam"] = "adam"
    """Optimiser."""
    adam_betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of the first and second moment."""
    adam_epsilon: float = Field(default=1e-9, gt=0, le=1)
    """Constant added to the square root of the second moment."""
    gradient_clip_norm: float = Field(default=0.0, ge=0, le=MANY)
    """Maximum norm of the gradient. 0: no clipping."""
    schedule: Literal["noam", "inverse-sqrt", "cosine", "linear", "constant"] = "noam"
    """Learning rate schedule. All rise linearly to a peak over warmup_steps. noam: equation 3 of the paper.
    inverse-sqrt: the same with a peak of your choice. cosine, linear: fall to final_learning_rate at max_steps.
    constant: stays at the peak."""
    final_learning_rate: float = Field(default=0.0, ge=0, le=1_000)
    """For cosine and linear: learning rate at max_steps."""
    peak_learning_rate: float = Field(default=0.0, ge=0, le=1_000)
    """Highest learning rate. Not allowed with noam, whose peak is d_model^-0.5 * warmup_steps^-0.5."""
    warmup_steps: int = Field(default=4000, ge=0, le=MANY)
    """Number of updates until the peak is reached."""
    source_loss: float = Field(default=1.0, ge=0, le=1)
    """Decoder alone: weight of the loss of the source tokens; 1 in Liu et al. 2018. The reported nll is always that of
    the target."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target distribution that is spread evenly over the vocabulary."""
    max_steps: int | None = Field(default=None, ge=1, le=MANY)
    """Stop after this number of updates."""
    max_epochs: int | None = Field(default=None, ge=1, le=MANY)
    """Stop after this number of epochs."""
    max_minutes: float | None = Field(default=None, gt=0, le=MANY)
    """Stop after this number of minutes of all sessions, with validation and saving."""
    patience_epochs: int | None = Field(default=None, ge=1, le=MANY)
    """Stop when best_metric has not improved for this number of epochs."""
    patience_validations: int | None = Field(default=None, ge=1, le=MANY)
    """Stop when best_metric has not improved for this number of validations."""
    best_metric: Literal["nll", "bleu"] = "nll"
    """Metric on the validation set that patience, keep_best and `average --best` compare."""
    validate_every_steps: int | None = Field(default=None, ge=1, le=MANY)
    """Validate every N updates; 1,250 if no validate_every_* is given."""
    validate_every_epochs: int | None = Field(default=None, ge=1, le=MANY)
    """Validate every N epochs."""
    validate_every_minutes: float | None = Field(default=None, gt=0, le=MANY)
    """Validate every N minutes of training."""
    validate_bleu: bool = True
    """Compute BLEU at each validation, not only nll."""
    checkpoint_every_steps: int | None = Field(default=None, ge=1, le=MANY)
    """Write a checkpoint every N updates; 1,250 if no checkpoint_every_* is given."""
    checkpoint_every_epochs: int | None = Field(default=None, ge=1, le=MANY)
    """Write a checkpoint every N epochs."""
    checkpoint_every_minutes: float | None = Field(default=None, gt=0, le=MANY)
    """Write a checkpoint every N minutes of training."""
    keep_last: int = Field(default=5, ge=1, le=1_000_000)
    """Number of latest checkpoints to keep; at least average_last."""
    keep_best: int = Field(default=1, ge=0, le=1_000_000)
    """Number of checkpoints with the best best_metric to keep in addition."""
    report_every_steps: int = Field(default=100, ge=1, le=MANY)
    """Write a line of metrics.jsonl every N updates, and at each validation."""
    compile: bool = False
    """Use torch.compile, for GPUs and long runs; it takes minutes, and on a CPU a C++ compiler. Results differ by
    rounding and in dropout."""
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """Precision of matrix multiplications; parameters and accumulators stay float32. auto: bf16 on CUDA devices of
    capability 8 or higher and on CPUs where a short trial shows it faster, else float32; chosen once per run. fp16:
    with an adaptive loss scale, for older GPUs."""
    weight_decay: float = Field(default=0.0, ge=0, le=1_000)
    """As in AdamW: each update subtracts learning rate x weight_decay of every matrix and embedding, but not of biases
    and norms. 0: off."""
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a moving average of the weights, such as 0.999 (lower in the first updates), which validation and
    checkpoints use. 0: off."""
    subword_sampling: float = Field(default=0.0, ge=0, le=1)
    """Sample new subwords in each epoch. bpe: share of merges that are left out, such as 0.1. unigram: exponent alpha,
    such as 0.2. 0: off. See data.md."""
    r_drop: float = Field(default=0.0, ge=0, le=1_000_000)
    """R-Drop: run each batch twice with different dropout and add the divergence to the loss, with this weight (alpha,
    such as 5). 0: off."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained, as beginnings of parameter names: "encoder", "decoder.0", "embeddings"."""
    init: Path | None = None
    """Model (run, model folder or checkpoint) from whose weights training starts; see fine-tuning.md."""
    init_layers: int | None = Field(default=None, ge=0, le=1_000)
    """With init: copy only embeddings, positions and the first N layers."""
    init_vocab: Literal["same", "mapped"] = "same"
    """With init: mapped allows another vocabulary. Entries of both keep their embeddings, and new pieces begin at the
    mean of those into which the model splits their text; see fine-tuning.md."""

    @model_validator(mode="before")
    @classmethod
    def _one_of_each_group(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for group in EXCLUSIVE_KEYS:
            stated = [key for key in group if values.get(key) is not None]
            if len(stated) > 1:
                raise ValueError(f"{' and '.join(stated)} exclude each other; state one")
            if not stated and not group[0].startswith("patience"):
                values[group[0]] = 1250
        if not any(values.get(key) is not None for key in ("max_steps", "max_epochs", "max_minutes")):
            values["max_steps"] = 100_000
        return values

    @model_validator(mode="after")
    def _check(self) -> "TrainingConfig":
        if self.schedule == "noam" and self.peak_learning_rate:
            raise ValueError("schedule noam has its own peak; leave peak_learning_rate out or choose inverse-sqrt")
        if self.schedule == "noam" and not self.warmup_steps:
            raise ValueError("schedule noam needs warmup_steps of at least 1")
        if self.schedule != "noam" and not self.peak_learning_rate:
            raise ValueError(f"schedule {self.schedule} needs a peak_learning_rate")
        highest = self.peak_learning_rate if self.schedule in ENDING_SCHEDULES else 0
        if self.final_learning_rate > highest:
            raise ValueError("final_learning_rate needs schedule = cosine or linear, and is at most peak_learning_rate")
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ValueError(f"adam_betas = {list(self.adam_betas)}: each is from 0 to below 1")
        if self.init_layers is not None and self.init is None:
            raise ValueError("init_layers needs init, the model whose layers are copied")
        if self.init_vocab != "same" and self.init is None:
            raise ValueError("init_vocab needs init, the model whose embeddings are copied")
        if self.best_metric == "bleu" and not self.validate_bleu:
            raise ValueError('best_metric = "bleu" needs validate_bleu = true')
        if self.schedule in ENDING_SCHEDULES and self.max_steps is None:
            raise ValueError(f"schedule {self.schedule} needs max_steps, the update at which it ends")
        return self


class DecodingConfig(_Section):
    """Search settings for validation and `translate`."""

    beam: int = Field(default=4, ge=1, le=10_000)
    """Beam size; 1 is greedy search."""
    length_penalty: Literal["wu", "length", "none"] = "wu"
    """Divisor of a hypothesis' log-probability; n is its length with the end symbol. wu: ((5 + n) / 6)^alpha, as in the
    paper. length: n^alpha, as in fairseq, CTranslate2 and Hugging Face. none: 1."""
    alpha: float = Field(default=0.6, ge=0, le=20)
    """Exponent of the length penalty."""
    finished: Literal["within", "beside"] = "within"
    """Finished hypotheses take places in the beam (within), or not (beside), as in CTranslate2, where the search ends
    when as many as the beam size are finished."""
    max_length_offset: int = Field(default=50, ge=0, le=1_000_000)
    """The maximum length of a translation is max_length_ratio x source length + max_length_offset, in tokens."""
    max_length_ratio: float = Field(default=1.0, ge=0, le=1000)
    """See max_length_offset; 1 in the paper."""
    max_length: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum length of any translation in tokens."""
    min_length: int = Field(default=0, ge=0, le=1_000_000)
    """Minimum length of a translation in tokens."""
    no_repeat_ngram: int = Field(default=0, ge=0, le=1_000_000)
    """Do not generate the same N tokens in a row twice; 0: no restriction."""
    coverage_penalty: float = Field(default=0.0, ge=0, le=1000)
    """Weight (beta) of the coverage penalty (Wu et al. 2016, equation 14) for parts of the source with little
    attention."""
    whole_trees: bool = False
    """For trees: generate only complete trees over the words of the source. The paper has no such constraint."""
    average_last: int = Field(default=5, ge=1, le=1_000_000)
    """Number of checkpoints that `average` and `run` average."""

    WELL_FORMED: ClassVar = "whole_trees"
    """Name of the key by which only well-formed outputs of the task are generated."""

    @property
    def well_formed(self) -> bool:
        """True if only well-formed outputs of the task are generated."""
        return self.whole_trees

    @property
    def is_that_of_ctranslate2(self) -> bool:
        """True if CTranslate2 searches in the same way: greedily, or with finished hypotheses beside the beam.

        There, it ranks by n^alpha, and distributes the probability of what min_length and no_repeat_ngram exclude over
        the other tokens. It knows no well-formed outputs.
        """
        has_its_penalty = self.length_penalty != "wu" or self.alpha == 0
        excludes = self.min_length or self.no_repeat_ngram or self.coverage_penalty
        is_its_beam_search = self.finished == "beside" and has_its_penalty and not excludes
        return not self.well_formed and (self.beam == 1 or is_its_beam_search)


class TrainingLengths(_Section):
    """Lengths of a model's training pairs, by which long lines are split and too short translations detected."""

    longest_source: int = Field(ge=1, le=1_000_000_000)
    """Tokens of the longest source."""
    target_ratio: float = Field(gt=0, le=1e9)
    """Target tokens per source token, over all pairs."""
    multi_sentence_share: float = Field(ge=0, le=1)
    """Share of the sources that hold more than one sentence."""
    longest_sequence: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Tokens of the longest source with its context; None for models without `data.context`."""

    max_source_tokens: int | None = Field(default=None, ge=1)
    """`data.max_source_tokens`, to which the sources were cut."""

    @model_serializer(mode="wrap")
    def _without_none(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


read_lengths = TypeAdapter(TrainingLengths | None).validate_python
"""Validator of the lengths in model.json or a manifest; None for older files without them."""


class Recipe(_Section):
    """All settings that decide the result of a run."""

    name: str
    data: DataConfig
    cleaning: CleaningConfig = CleaningConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="before")
    @classmethod
    def _long_lines(cls, values: Any) -> Any:
        """Let no document be too long, and no line that is cut into sequences or to a length; set the head."""
        if not isinstance(values, dict) or not isinstance(values.get("data"), dict):
            return values
        cleaning, task = values.get("cleaning") or {}, values["data"].get("task")
        if task in HEADS and isinstance(model := values.get("model") or {}, dict):
            head = "number" if values["data"].get("label_type") == "number" else HEADS[task]
            values = {**values, "model": {"head": head, **model}}
        if task == TRAJECTORIES and isinstance(model := values.get("model") or {}, dict):
            head = f"{values['data'].get('actions', 'discrete')}-action"
            is_vector = values["data"].get("states") == "vector"
            values = {**values, "model": {"head": head, "vector_states": is_vector, **model}}
        if task not in (LANGUAGE_MODEL, SUMMARY, *HEADS) or not isinstance(cleaning, dict):
            return values
        own: dict[str, Any] = {"max_tokens": 0, "max_characters": 0}
        if task == LANGUAGE_MODEL:
            own["source_equals_target"] = "keep"
        return {**values, "cleaning": {**own, **cleaning}}

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if self.data.task_name == LANGUAGE_MODEL:
            if not self.model.is_joined:
                raise ValueError('[data] task = "language-model" needs [model] architecture = "decoder"')
            if self.training.validate_bleu:
                raise ValueError("[training] validate_bleu: BLEU cannot be computed for a text without a source")
            if self.training.subword_sampling:
                raise ValueError("[training] subword_sampling cannot be used for a language model")
        if self.model.head != self.data.head:
            raise ValueError(f'[model] head = "{self.model.head}" contradicts [data] task; leave head out')
        if self.model.vector_states != (self.data.states == "vector"):
            raise ValueError("[model] vector_states contradicts [data] states; leave vector_states out")
        if self.model.has_actions and self.cleaning != CleaningConfig():
            raise ValueError("[cleaning] is for text, not for episodes; leave it out")
        if not self.model.has_actions and (self.model.return_values or not self.model.returns):
            raise ValueError('[model] returns and return_values are for [data] task = "trajectories"; leave them out')
        if self.data.has_labels or self.model.has_actions:
            self._check_labels()
        elif self.model.is_joined and not self.data.share_vocab:
            raise ValueError('[model] architecture = "decoder" needs [data] share_vocab = true')
        if self.model.share_embeddings == "all" and not self.data.share_vocab and self.data.head == "none":
            raise ValueError('[model] share_embeddings = "all" needs [data] share_vocab = true; choose decoder or none')
        if self.model.is_joined and self.model.source_attention == "full" and self.training.source_loss:
            raise ValueError(
                '[model] source_attention = "full" needs [training] source_loss = 0: a token of the source that is '
                "seen cannot be predicted"
            )
        has_source = self.data.task_name != LANGUAGE_MODEL
        if self.model.is_joined and self.training.r_drop and self.training.source_loss and has_source:
            raise ValueError("[training] r_drop needs source_loss = 0")
        if self.training.keep_last < self.decoding.average_last:
            raise ValueError(
                f"[training] keep_last = {self.training.keep_last} is less than [decoding] average_last = "
                f"{self.decoding.average_last}; checkpoints would be deleted before they are averaged"
            )
        source_tokens, most = self.data.max_source_tokens, self.cleaning.max_tokens
        if source_tokens is not None and 0 < most < source_tokens:
            raise ValueError(
                f"[data] max_source_tokens = {source_tokens} is more than [cleaning] max_tokens = {most}, which would "
                "leave out all longer sources; raise max_tokens, or set it to 0"
            )
        longest = self.model.max_positions - 1
        if self.model.has_actions:
            pass  # positions are steps of an episode, which `prepare` counts
        elif self.model.positions == "learned" and (self.data.task_name == LANGUAGE_MODEL or self.data.has_labels):
            if self.data.sequence_length > self.model.max_positions:
                raise ValueError(
                    f"[model] max_positions = {self.model.max_positions} is less than [data] sequence_length = "
                    f"{self.data.sequence_length}"
                )
        elif self.model.positions == "learned" and self.model.is_joined:
            if not 0 < 2 * self.cleaning.max_tokens <= longest:
                raise ValueError(
                    f"[model] max_positions = {self.model.max_positions} holds source and target of {longest // 2} "
                    f"tokens each; set [cleaning] max_tokens to at most {longest // 2}"
                )
        elif self.model.positions == "learned" and not 0 < self.cleaning.max_tokens <= longest:
            raise ValueError(
                f"[model] max_positions = {self.model.max_positions} holds {longest} tokens and the end symbol; set "
                f"[cleaning] max_tokens to at most {longest}"
            )
        if self.training.subword_sampling and self.data.subwords not in ("bpe", "unigram"):
            raise ValueError(
                f'[training] subword_sampling is for [data] subwords = "bpe" or "unigram", not "{self.data.subwords}"'
            )
        if self.data.has_trees and self.training.validate_bleu:
            raise ValueError("[training] validate_bleu: BLEU cannot be computed for trees; set it to false")
        if self.decoding.whole_trees and not self.data.has_trees:
            raise ValueError('[decoding] whole_trees needs [data] text = "trees" or "tagged-trees"')
        if not self.data.valid and (self.training.patience_epochs or self.training.patience_validations):
            raise ValueError("[training] patience needs [data] valid")
        return self

    def _check_labels(self) -> None:
        """Raise ValueError for settings that contradict a task whose output is a label or an action."""
        task = f'[data] task = "{self.data.task_name}"'
        if not self.model.is_joined or self.model.source_attention != "causal":
            raise ValueError(f'{task} needs [model] architecture = "decoder" and source_attention = "causal"')
        if self.model.has_actions and self.model.positions != "learned":
            raise ValueError(f'{task} needs [model] positions = "learned", those of the steps of an episode')
        refused = [key for key in ("validate_bleu", "subword_sampling", "r_drop") if getattr(self.training, key)]
        if refused:
            raise ValueError(f"[training] {' and '.join(refused)}: not for {task}; set to false or 0")
        if self.model.has_actions and self.training.source_loss != _default(TrainingConfig, "source_loss"):
            raise ValueError(f"[training] source_loss: not for {task}, which predicts actions only; leave it out")


SECTIONS: dict[str, type[_Section]] = {
    "data": DataConfig,
    "cleaning": CleaningConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "decoding": DecodingConfig,
}


def corpus_name(entry: CorpusEntry) -> str:
    """Return the short name of a corpus: its name, else the part after the last slash or the source file."""
    if isinstance(entry, LocalPair | GeneratedCorpus):
        file = entry.source if isinstance(entry, LocalPair) else entry.generate
        return entry.name or without_suffix(file.name).rsplit(":", 1)[-1].rsplit(".", 1)[0]
    if isinstance(entry, NamedCorpus) and entry.name:
        return entry.name
    name = public_name(entry)
    return name.removeprefix("sacrebleu:").rsplit("/", 1)[-1]


def public_name(entry: str | NamedCorpus) -> str:
    """Return the name of a corpus that is not given by files."""
    return entry if isinstance(entry, str) else entry.corpus


def one_language(codes: Sequence[str]) -> str:
    """Return the code of a side in these languages."""
    return codes[0] if len(codes) == 1 else MANY_LANGUAGES


def languages_of(data: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the source and the target languages of the training corpora in a stored [data]."""
    entries = data.get("train") or ["name"]
    sides = [
        list(dict.fromkeys(_stated(entry, key) or str(data.get(key, "?")) for entry in entries))
        for key in ("source_language", "target_language")
    ]
    return sides[0], sides[1]


def mixture_label(entry: CorpusEntry) -> str:
    """Return the weight, the tag and the languages of a corpus as text, without those that have their default."""
    if isinstance(entry, str):
        return ""
    short = f"{entry.weight:g}"
    stated = short if float(short) == entry.weight else repr(entry.weight)
    weight = f", weight {stated}" if entry.weight != 1 else ""
    tag = f", tag {entry.source_prefix}" if entry.source_prefix else ""
    languages = ((side, getattr(entry, f"{side}_language")) for side in ("source", "target"))
    return weight + tag + "".join(f", {side} {code}" for side, code in languages if code)
