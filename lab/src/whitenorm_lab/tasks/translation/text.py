"""Parallel text: two files of a split, a sentence a line, read with errors that name file and line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from whitenorm_lab.data import ROOT_VARIABLE, root_folder

ORIGINS = {
    "multi30k": "Multi30k, task 1, raw: https://github.com/multi30k/dataset",
    "iwslt14": "IWSLT 2014, German and English, as fairseq's prepare-iwslt14.sh splits it, without its BPE",
}
_FOLDER = "folder:"
# The names that a split goes by.
_SPLITS = {"train": ("train",), "validation": ("val", "valid"), "test": ("test", "test_2016_flickr")}


class Pairs(NamedTuple):
    """Sentences and their translations, line by line."""

    source: list[str]
    target: list[str]


class Corpus(NamedTuple):
    """The splits of a set, and how many of their pairs were left out as a side of them was empty."""

    train: Pairs
    validation: Pairs
    test: Pairs
    left_out: int


def read(dataset: str, root: Path | None, source: str, target: str, skip_empty: bool = False) -> Corpus:
    """A set by name from the data root, or any folder by its path.

    Args:
        dataset: ``multi30k``, ``iwslt14`` or ``folder:PATH``, with files such as ``train.de`` and ``train.en``.
        root: the data root; the environment's if None.
        source, target: the languages, as the files' names end with them.
        skip_empty: leave out pairs of which a side is empty, which are an error otherwise.
    """
    if source == target:
        raise ValueError(f"expected two languages (got {source} and {target})")
    folder = _folder(dataset, root)
    splits, left_out = {}, 0
    for split, names in _SPLITS.items():
        files = _files(folder, names, (source, target), ORIGINS.get(dataset, ""))
        splits[split], empty = _pairs(*files, skip_empty)
        left_out += empty
    return Corpus(**splits, left_out=left_out)


def _folder(dataset: str, root: Path | None) -> Path:
    if dataset.startswith(_FOLDER):
        folder = Path(dataset.removeprefix(_FOLDER))
        if not folder.is_dir():
            raise OSError(f"expected a folder of parallel text (got {folder}, which is none)")
        return folder
    if dataset not in ORIGINS:
        raise ValueError(f"expected a dataset of {', '.join(ORIGINS)}, or folder:PATH (got {dataset!r})")
    root = root_folder(root)
    if root is None:
        raise OSError(f"{dataset} needs a data root: pass --data or set ${ROOT_VARIABLE}. {ORIGINS[dataset]}")
    if not (root / dataset).is_dir():
        raise OSError(f"expected the folder {root / dataset} (got none). {ORIGINS[dataset]}")
    return root / dataset


def _files(folder: Path, names: tuple[str, ...], languages: tuple[str, str], origin: str) -> tuple[Path, Path]:
    """The two files of a split, by the first of its names that any file has."""
    for name in names:
        source, target = (folder / f"{name}.{language}" for language in languages)
        if source.exists() or target.exists():
            break
    else:
        source, target = (folder / f"{names[0]}.{language}" for language in languages)
    for file in (source, target):
        if not file.is_file():
            known = f" Names of this split: {', '.join(names)}." if len(names) > 1 else ""
            raise OSError(f"expected the file {file} (got none).{known} {origin}".rstrip())
    return source, target


def _pairs(source: Path, target: Path, skip_empty: bool) -> tuple[Pairs, int]:
    """The pairs of a split, and how many were left out."""
    sides = [_lines(file) for file in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise OSError(
            f"expected as many lines in {source} as in {target} (got {len(sides[0])} and {len(sides[1])}); a line of "
            "one is the translation of the same line of the other: get both files again"
        )
    if not skip_empty:
        for file, lines in zip((source, target), sides, strict=True):
            if "" in lines:
                raise OSError(
                    f"expected a sentence in every line (got an empty one, line {lines.index('') + 1} of {file}); "
                    "--skip-empty leaves such pairs out"
                )
    whole = [(one, other) for one, other in zip(*sides, strict=True) if one and other]
    if not whole:
        raise OSError(f"expected sentences in {source} and {target} (got none)")
    return Pairs([one for one, _ in whole], [other for _, other in whole]), len(sides[0]) - len(whole)


def _lines(file: Path) -> list[str]:
    """Lines without what is around their text. Only a line feed ends one: Unicode's other ends occur inside."""
    content = file.read_bytes()
    try:
        return [line.strip() for line in content.decode().removesuffix("\n").split("\n")] if content else []
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise OSError(
            f"expected {file} in UTF-8 (got the byte {content[error.start]:#04x} in line {number}); convert it, such "
            "as by iconv"
        ) from error
