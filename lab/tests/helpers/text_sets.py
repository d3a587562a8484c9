"""Small parallel text with the file names of the real sets: a toy grammar in two languages."""

import random
import string

_WORDS = {
    "det": [("ein", "a"), ("der", "the")],
    "noun": [("Mann", "man"), ("Hund", "dog"), ("Vogel", "bird"), ("Ball", "ball"), ("Baum", "tree"), ("Zug", "train")],
    "verb": [("sieht", "sees"), ("mag", "likes"), ("malt", "paints"), ("sucht", "seeks")],
    "adjective": [("roter", "red"), ("kleiner", "small"), ("alter", "old")],
}
# About the characters of the real sets.
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + "äöüßÄÖÜé"
_ORDER = ("det", "adjective", "noun", "verb", "det", "noun")


def write_multi30k(root, pairs=200, tests=20, rare=""):
    """Write all files of ``root/multi30k``; the first training pair ends with the ``rare`` characters."""
    folder = root / "multi30k"
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    for split, size in (("train", pairs), ("val", tests), ("test_2016_flickr", tests)):
        lines = [_draw_pair(generator) for _ in range(size)]
        for side, language in enumerate(("de", "en")):
            sentences = [f"{line[side]}." for line in lines]
            if split == "train" and rare:
                sentences[0] += f" {rare}"
            text = "".join(f"{sentence}\n" for sentence in sentences)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


def _draw_pair(generator):
    types = [type_ for type_ in _ORDER if type_ != "adjective" or generator.random() < 0.5]
    words = [generator.choice(_WORDS[type_]) for type_ in types[: generator.choice((3, 4, 6))]]
    return tuple(" ".join(word[side] for word in words) for side in (0, 1))
