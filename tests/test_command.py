"""The command itself: short answers to what it does not know, and a reader that goes away."""

import multiprocessing.connection
import os
import sys

import pytest

import whitenorm
from whitenorm.cli import COMMANDS, main
from whitenorm.lab import demo


def refused(args, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(args)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) <= 3
    return printed.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("inspct resnet18", "whitenorm: unknown command inspct; did you mean inspect?\nwhitenorm --help lists all."),
        ("--versoin", "whitenorm: unknown option --versoin; did you mean --version?"),
        (
            "inspect resnet18 --lyer iternorm",
            "whitenorm inspect: unknown option --lyer; did you mean --layer?\nwhitenorm inspect --help lists all.",
        ),
        ("inspect --lyer=iternorm", "unknown option --lyer; did you mean --layer?"),
        ("train custom --epoch 3", "whitenorm train custom: unknown option --epoch; did you mean --epochs?"),
        ("train dbn-vg", "(got dbn-vg); did you mean dbn-vgg?"),
        ("reproduce dbn-cots", "(got dbn-cots); did you mean dbn-cost?"),
        ("reproduce --scale big", "Expected one of ('smoke', 'default', 'paper')"),
        ("demo --epochs x", "--epochs: invalid literal for int() with base 10: 'x'"),
        ("demo --epochs 0", "whitenorm demo: expected epochs to be at least 1 (got 0)"),
        ("demo 3", "whitenorm demo: expected no more (got 3)"),
        ("report --resluts x", "did you mean --results?"),
        ("inspect", "A torchvision or timm name"),
    ],
)
def test_what_is_not_known_is_answered_in_two_lines(args, words, capsys):
    error = refused(args.split(), capsys)
    assert words in error
    assert "╭" not in error


def test_a_long_message_is_not_broken_by_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    name = "a-name-that-is-longer-than-the-terminal-is-wide"
    assert f"(got {name})" in refused(["demo", name], capsys)
    assert os.environ["COLUMNS"] == "40"


def test_version_and_help(capsys):
    for args, words in (
        (["--version"], f"whitenorm {whitenorm.__version__}\n"),
        (["--help"], "what a model's norms do"),
        (["demo", "--help"], "--batch-size"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(args)
        assert words in capsys.readouterr().out


@pytest.mark.parametrize("args", ["--version", "--help", "demo --help", "reproduce --list", "print"])
def test_a_reader_that_goes_away_ends_it_quietly(args, monkeypatch, capfd):
    monkeypatch.setattr(demo, "run", lambda _: print("many\n" * 100_000))
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        try:
            code = main(["demo"] if args == "print" else args.split())
        except SystemExit as end:
            code = end.code
        monkeypatch.undo()
    assert code == 1
    assert capfd.readouterr().err == ""


def test_another_pipe_that_breaks_is_not_silent(monkeypatch):
    def run(_):
        ours, theirs = multiprocessing.connection.Pipe()
        theirs.close()
        ours.send(1)

    monkeypatch.setattr(demo, "run", run)
    with pytest.raises(BrokenPipeError):
        main(["demo"])


def test_the_benchmarks_need_a_checkout(monkeypatch, capsys):
    monkeypatch.setattr("whitenorm.cli._commands", lambda: COMMANDS)
    assert "bench runs in a checkout only" in refused(["bench"], capsys)
