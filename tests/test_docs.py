"""The code in README and guides runs as it stands."""

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", ["README.md", "docs/guide.md"])
def test_code_runs(path):
    pytest.importorskip("torchvision")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)
    assert blocks
    names = {}
    with warnings.catch_warnings():
        # torch.export's own, of its tracing.
        warnings.simplefilter("ignore")
        for block in blocks:
            exec(block, names)
