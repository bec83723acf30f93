"""`nmtkit corpora`."""

import json
from typing import Annotated, Any

from typer import Argument, BadParameter, Option

from nmtkit import console
from nmtkit.corpora import opus
from nmtkit.corpora.catalogue import CatalogueEntry, catalogue
from nmtkit.corpora.corpus import BUILTIN_LANGUAGES, BUILTIN_SPLITS, FACTS_SPLITS, describe_missing, find_entry
from nmtkit.corpora.sacrebleu_sets import set_names
from nmtkit.errors import DataError


def command(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="Show this corpus with all of its files.")] = None,
    languages: Annotated[
        str | None, Option(metavar="en-de", help="List corpora of this pair, in either direction.")
    ] = None,
    sacrebleu: Annotated[bool, Option(help="List sacreBLEU's test sets, named sacrebleu:NAME in a recipe.")] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print JSON with addresses, sizes, checksums and licences.")
    ] = False,
) -> None:
    """List the public corpora that a recipe can name, with languages, download size and licence.

    Example: nmtkit corpora --languages en-de
    """
    if name is not None and sacrebleu:
        raise BadParameter("lists all test sets; leave out NAME", param_hint="--sacrebleu")
    if name in (*BUILTIN_SPLITS, *FACTS_SPLITS):
        raise DataError(f"{name} is made up by nmtkit: there are no files to list; a recipe can name it")
    if name is not None:
        entry = find_entry(name)
        if entry is None:
            raise DataError(describe_missing(name))
        entries = [entry]
    else:
        names = set_names() if sacrebleu else list(catalogue())
        entries = [entry for key in names if (entry := find_entry(key)) is not None]
    codes = {code.lower(): code for entry in entries for pair in entry.texts for code in pair}  # such as pt_BR of OPUS
    stated = [codes.get(code.lower(), code) for code in languages.split("-")] if languages else []
    languages = "-".join(stated) or None
    pairs = [tuple(stated), tuple(reversed(stated))] if stated else None
    shown = [entry for entry in entries if pairs is None or any(pair in entry.texts for pair in pairs)]
    if not shown:
        has = sorted({pair for entry in entries for pair in entry.language_pairs})
        raise DataError(
            f"--languages {languages}: no corpus has that pair; there are {', '.join(has)}"
            + ("" if sacrebleu else f", and corpora of OPUS, named {opus.FORM}")
        )
    if as_json:
        print(json.dumps([_described(entry, pairs) for entry in shown], indent=2))
        return
    rows = [[entry.name, _pairs(entry, pairs), _size(entry, pairs), entry.description] for entry in shown]
    if name is None and not sacrebleu and (pairs is None or BUILTIN_LANGUAGES in pairs):
        rows += [[key, "-".join(BUILTIN_LANGUAGES), "0", "made up by nmtkit, no download"] for key in BUILTIN_SPLITS]
    if name is None and not sacrebleu and pairs is None:
        rows += [[key, "en-en", "0", "made up by nmtkit, long documents with summaries"] for key in FACTS_SPLITS]
    if name is None and not sacrebleu:
        code = languages or "xx-yy"
        rows += [[f"{opus.PREFIX}{key}:{code}", code, "?", f"OPUS: {what}"] for key, what in opus.KNOWN.items()]
    licences = dict.fromkeys(entry.licence for entry in shown)
    notes = [
        f"{licence}: {', '.join(entry.name for entry in shown if entry.licence == licence)}" for licence in licences
    ]
    title = "sacreBLEU's test sets" if sacrebleu else "Public corpora"
    size = f"MB for {languages}" if languages else "MB"
    notes += [] if sacrebleu or name else [f"see OPUS (https://opus.nlpl.eu), also for languages: any {opus.FORM}"]
    console.print_table(title, ["name", "languages", size, ""], rows, notes=["Licences:", *notes])
    if name is not None:
        files = [[file["url"], _megabytes(file["bytes"]), file["checksum"]] for file in _files(shown[0], pairs)]
        console.print_table("Files", ["address", "MB", "checksum"], files)


_Pairs = list[tuple[str, ...]] | None


def _directions(entry: CatalogueEntry, pairs: _Pairs) -> list[tuple[str, str]]:
    return [pair for pair in entry.texts if pairs is None or pair in pairs]


def _pairs(entry: CatalogueEntry, pairs: _Pairs) -> str:
    known = ["-".join(pair) for pair in _directions(entry, pairs)]
    return " ".join(pair for pair in known if pair in entry.language_pairs or pairs is not None)


def _files(entry: CatalogueEntry, pairs: _Pairs) -> list[dict[str, Any]]:
    """Return the distinct files of the directions."""
    files = dict.fromkeys(file for pair in _directions(entry, pairs) for file in entry.files(*pair))
    return [
        {
            "url": file.url,
            "alternatives": list(file.alternatives),
            "bytes": file.num_bytes,
            "checksum": f"sha256 {file.sha256}" if file.sha256 else f"md5 {file.md5}" if file.md5 else "",
        }
        for file in files
    ]


def _size(entry: CatalogueEntry, pairs: _Pairs) -> str:
    sizes = [file["bytes"] for file in _files(entry, pairs)]
    return "?" if None in sizes else _megabytes(sum(sizes))


def _megabytes(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "?"
    return f"{num_bytes / 1e6:,.1f}" if num_bytes >= 1e6 else f"{num_bytes / 1e6:.2f}"


def _described(entry: CatalogueEntry, pairs: _Pairs) -> dict[str, Any]:
    directions = _directions(entry, pairs)
    return {
        "name": entry.name,
        "description": entry.description,
        "licence": entry.licence,
        "directions": ["-".join(pair) for pair in directions],
        "format": entry.text_format,
        "texts": {
            "-".join(pair): [
                {"url": text.file.url, "member": text.member, "part": text.part or None} for text in entry.texts[pair]
            ]
            for pair in directions
        },
        "files": _files(entry, pairs),
    }
