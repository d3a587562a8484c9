"""The command's dispatch: what it lists, what it says of unknown words, and a reader that goes away."""

import sys

import pytest

import whitenorm
from whitenorm.cli import main
from whitenorm.cli.main import COMMANDS


def test_bare_command_lists_all_commands(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in printed
        assert command.help in printed


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"whitenorm {whitenorm.__version__}\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["inspct"], "unknown command inspct; did you mean inspect?"),
        (["--versoin"], "--versoin"),
        (["inspect", "resnet18", "--lyer", "iternorm"], "--layer"),
        (["bench", "--shpae", "1"], "--shpae"),
        (["gpu", "--forgte"], "--forgte"),
    ],
)
def test_unknown_words_end_the_command_and_are_named(args, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(args)
    assert words in capsys.readouterr().err


def test_expected_errors_are_one_line(capsys):
    assert main(["bench", "--shape", "3"]) == 1
    assert (
        capsys.readouterr().err == "whitenorm: expected --shape of 3 to 5 sizes, batch and channels first (got [3])\n"
    )


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.delitem(sys.modules, "whitenorm.cli.inspect", raising=False)
    assert main(["inspect", "resnet18"]) == 1
    assert "whitenorm inspect needs tyro: pip install 'whitenorm[inspect]'" in capsys.readouterr().err
