"""Entries of the lists of corpora in a recipe, with their names and languages."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_serializer, model_validator

from nmtkit.compression import without_suffix
from nmtkit.config.section import FILE_NAME, LANGUAGE_CODE, MANY, ONE_WORD, Section

MANY_LANGUAGES = "mul"
"""Code of a side with several languages (ISO 639-2)."""


class _InMixture(Section):
    """Settings that every corpus can have; weight and source_prefix are for data.train only."""

    source_language: str | None = Field(default=None, pattern=LANGUAGE_CODE)
    """Language of the source of this corpus; by default that of [data]."""
    target_language: str | None = Field(default=None, pattern=LANGUAGE_CODE)
    """Language of the target of this corpus; by default that of [data]."""

    weight: float = Field(default=1.0, gt=0, le=1000)
    """Number of times each pair is seen per epoch. 2: twice. 0.5: half of the pairs in each epoch, in turn."""
    source_prefix: str = Field(default="", pattern=ONE_WORD, max_length=40)
    """A tag such as "<bt>", added before each source sentence as a token of its own."""


class NamedCorpus(_InMixture):
    """A corpus of the catalogue, with a weight, a tag or another name."""

    corpus: str
    """Name in the catalogue."""
    name: str | None = Field(default=None, pattern=FILE_NAME)
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
    name: str | None = Field(default=None, pattern=FILE_NAME)
    """Name for messages and score tables, without slashes; by default the name of the source file."""

    @property
    def columns(self) -> tuple[int | tuple[int, ...] | None, int | None]:
        """The stated columns of both sides."""
        return self.source_column, self.target_column

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
        others = {key: value for key, value in values.items() if key != "text"}
        return {**others, "source": values["text"], "target": values["text"]}


class Noise(Section):
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
    from_: str | None = Field(default=None, alias="from", pattern=ONE_WORD)
    """The model's code for the language of the text, by default the code of the corpus; `from` in recipes."""
    to: str | None = Field(default=None, pattern=ONE_WORD)
    """The model's code for the language of the translations, by default the code of the corpus."""
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
    name: str | None = Field(default=None, pattern=FILE_NAME)
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


def stated_text(entry: Any, key: str) -> str | None:
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


def corpus_name(entry: CorpusEntry) -> str:
    """Return the short name of a corpus: its name, else the part after the last slash or the source file."""
    if isinstance(entry, LocalPair | GeneratedCorpus):
        file = entry.source if isinstance(entry, LocalPair) else entry.generate
        stem = without_suffix(file.name).rsplit(":", 1)[-1]
        return entry.name or stem.rsplit(".", 1)[0] or stem.lstrip(".")
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
        list(dict.fromkeys(stated_text(entry, key) or str(data.get(key, "?")) for entry in entries))
        for key in ("source_language", "target_language")
    ]
    return sides[0], sides[1]


def mixture_label(entry: CorpusEntry) -> str:
    """Return the weight, the tag and the languages of a corpus as text, without those that have their default."""
    if isinstance(entry, str):
        return ""
    # The shortest form that is still exactly this weight, as the label decides whether data are prepared again.
    short = f"{entry.weight:g}"
    stated = short if float(short) == entry.weight else repr(entry.weight)
    weight = f", weight {stated}" if entry.weight != 1 else ""
    tag = f", tag {entry.source_prefix}" if entry.source_prefix else ""
    languages = ((side, getattr(entry, f"{side}_language")) for side in ("source", "target"))
    return weight + tag + "".join(f", {side} {code}" for side, code in languages if code)
