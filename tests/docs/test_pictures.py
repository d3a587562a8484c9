"""The pictures of docs/more-methods.md are of its code. If this fails, run ``python tools/docs/pictures.py``."""

import importlib.util
from pathlib import Path

import pytest

Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).parents[2]


def load_tool():
    specification = importlib.util.spec_from_file_location("pictures", ROOT / "tools" / "docs" / "pictures.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_pictures_are_of_the_pages_code():
    pytest.importorskip("matplotlib")
    pictures = load_tool()
    for name in pictures.PICTURES:
        path = pictures.picture_path(name)
        assert Image.open(path).text["Source"] == pictures.digest()
        assert f"]({path.name})" in pictures.PAGE.read_text(encoding="utf-8")
