"""Parallel text: two files per split, one sentence per line. Errors name the file and the line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from whitenorm_lab.data import ROOT_VARIABLE, root_folder

ORIGINS = {
    "multi30k": "Multi30k, task 1, raw: https://github.com/multi30k/dataset",
    "iwslt14": "IWSLT 2014, German and English, as fairseq's prepare-iwslt14.sh splits it, without its BPE",
}
_FOLDER = "folder:"
# Accepted file names of each split.
_SPLITS = {"train": ("train",), "validation": ("val", "valid"), "test": ("test", "test_2016_flickr")}


class Pairs(NamedTuple):
    """Sentences and their translations, in the same order."""

    source: list[str]
    target: list[str]


class Corpus(NamedTuple):
    """The splits of a data set, and the number of pairs that were skipped because a side was empty."""

    train: Pairs
    validation: Pairs
    test: Pairs
    skipped: int


def read_corpus(dataset: str, root: Path | None, source: str, target: str, skip_empty: bool = False) -> Corpus:
    """Read a data set from the data root by name, or from any folder by path.

    Args:
        dataset: ``multi30k``, ``iwslt14`` or ``folder:PATH``, with files such as ``train.de`` and ``train.en``.
        root: the data root; if None, that of the environment variable.
        source, target: the languages, as the extensions of the files.
        skip_empty: skip pairs with an empty side instead of raising an error.
    """
    if source == target:
        raise ValueError(f"expected two languages (got {source} and {target})")
    folder = _find_folder(dataset, root)
    splits, skipped = {}, 0
    for split, names in _SPLITS.items():
        files = _find_files(folder, names, (source, target), ORIGINS.get(dataset, ""))
        splits[split], empty = _read_pairs(*files, skip_empty)
        skipped += empty
    return Corpus(**splits, skipped=skipped)


def _find_folder(dataset: str, root: Path | None) -> Path:
    if dataset.startswith(_FOLDER):
        folder = Path(dataset.removeprefix(_FOLDER))
        if not folder.is_dir():
            raise OSError(f"expected a folder of parallel text (got {folder}, which is not a folder)")
        return folder
    if dataset not in ORIGINS:
        raise ValueError(f"expected the dataset {', '.join(ORIGINS)}, or folder:PATH (got {dataset!r})")
    root = root_folder(root)
    if root is None:
        raise OSError(f"{dataset} needs a data root: pass --data or set ${ROOT_VARIABLE}. {ORIGINS[dataset]}")
    if not (root / dataset).is_dir():
        raise OSError(f"expected the folder {root / dataset} (got none). {ORIGINS[dataset]}")
    return root / dataset


def _find_files(folder: Path, names: tuple[str, ...], languages: tuple[str, str], origin: str) -> tuple[Path, Path]:
    """Return the two files of a split, under the first name that either file has."""
    for name in names:
        source, target = (folder / f"{name}.{language}" for language in languages)
        if source.exists() or target.exists():
            break
    else:
        source, target = (folder / f"{names[0]}.{language}" for language in languages)
    for file in (source, target):
        if not file.is_file():
            accepted = f" Accepted names of this split: {', '.join(names)}." if len(names) > 1 else ""
            raise OSError(f"expected the file {file} (got none).{accepted} {origin}".rstrip())
    return source, target


def _read_pairs(source: Path, target: Path, skip_empty: bool) -> tuple[Pairs, int]:
    """Return the pairs of a split and the number of skipped pairs."""
    sides = [_read_lines(file) for file in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise OSError(
            f"expected as many lines in {source} as in {target} (got {len(sides[0])} and {len(sides[1])}): each line "
            "translates the same line of the other file; download both files again"
        )
    if not skip_empty:
        for file, lines in zip((source, target), sides, strict=True):
            if "" in lines:
                raise OSError(
                    f"expected a sentence in every line (got an empty line, line {lines.index('') + 1} of {file}); "
                    "pass --skip-empty to skip such pairs"
                )
    pairs = [pair for pair in zip(*sides, strict=True) if all(pair)]
    if not pairs:
        raise OSError(f"expected sentences in {source} and {target} (got none)")
    return Pairs(*map(list, zip(*pairs, strict=True))), len(sides[0]) - len(pairs)


def _read_lines(file: Path) -> list[str]:
    """Return the stripped lines. Only a line feed ends a line, as Unicode's other line ends occur inside sentences."""
    content = file.read_bytes()
    try:
        return [line.strip() for line in content.decode().removesuffix("\n").split("\n")] if content else []
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise OSError(
            f"expected {file} in UTF-8 (got the byte {content[error.start]:#04x} in line {line}); convert it, for "
            "example with iconv"
        ) from error
