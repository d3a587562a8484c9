"""Small parallel text in the layout of the real sets: sentences of a toy grammar in two languages, word by word."""

import random

_WORDS = {
    "det": [("ein", "a"), ("der", "the")],
    "noun": [("Mann", "man"), ("Hund", "dog"), ("Vogel", "bird"), ("Ball", "ball"), ("Baum", "tree"), ("Zug", "train")],
    "verb": [("sieht", "sees"), ("mag", "likes"), ("malt", "paints"), ("sucht", "seeks")],
    "adjective": [("roter", "red"), ("kleiner", "small"), ("alter", "old")],
}
_ORDER = ("det", "adjective", "noun", "verb", "det", "noun")


def write_multi30k(root, pairs=200, tests=20):
    """``root/multi30k`` with all its files."""
    folder = root / "multi30k"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    for split, number in (("train", pairs), ("val", tests), ("test_2016_flickr", tests)):
        lines = [_pair(drawn) for _ in range(number)]
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{line[side]}.\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


def _pair(drawn):
    kinds = [kind for kind in _ORDER if kind != "adjective" or drawn.random() < 0.5]
    words = [drawn.choice(_WORDS[kind]) for kind in kinds[: drawn.choice((3, 4, 6))]]
    return tuple(" ".join(word[side] for word in words) for side in (0, 1))
