"""Small parallel text in the layout of the real sets: sentences of a toy grammar in two languages, word by word."""

import random
import string

_WORDS = {
    "det": [("ein", "a"), ("der", "the")],
    "noun": [("Mann", "man"), ("Hund", "dog"), ("Vogel", "bird"), ("Ball", "ball"), ("Baum", "tree"), ("Zug", "train")],
    "verb": [("sieht", "sees"), ("mag", "likes"), ("malt", "paints"), ("sucht", "seeks")],
    "adjective": [("roter", "red"), ("kleiner", "small"), ("alter", "old")],
}
# About as many characters as the real sets have.
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + "äöüßÄÖÜé"
_ORDER = ("det", "adjective", "noun", "verb", "det", "noun")


def write_multi30k(root, pairs=200, tests=20, rare=""):
    """``root/multi30k`` with all its files; the first training pair ends with the ``rare`` characters."""
    folder = root / "multi30k"
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    for split, number in (("train", pairs), ("val", tests), ("test_2016_flickr", tests)):
        lines = [_pair(drawn) for _ in range(number)]
        for side, language in enumerate(("de", "en")):
            sentences = [f"{line[side]}." for line in lines]
            if split == "train" and rare:
                sentences[0] += f" {rare}"
            text = "".join(f"{sentence}\n" for sentence in sentences)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


def _pair(drawn):
    kinds = [kind for kind in _ORDER if kind != "adjective" or drawn.random() < 0.5]
    words = [drawn.choice(_WORDS[kind]) for kind in kinds[: drawn.choice((3, 4, 6))]]
    return tuple(" ".join(word[side] for word in words) for side in (0, 1))
