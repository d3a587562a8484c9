"""Dispatch of the ``whitenorm`` command: help, errors, missing packages, and readers that close the pipe."""

import multiprocessing.connection
import os
import subprocess
import sys

import pytest

import whitenorm
from whitenorm.cli import bench, main
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
    ("args", "message"),
    [
        (["inspct"], "unknown command inspct; did you mean inspect?"),
        (["--versoin"], "--versoin"),
        (["inspect", "resnet18", "--lyer", "iternorm"], "--layer"),
        (["inspect"], "MODEL"),
        (["bench", "--shpae", "1"], "--shpae"),
        (["gpu", "--forgte"], "--forgte"),
    ],
)
def test_unknown_arguments_are_named(args, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(args)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


def test_expected_errors_are_one_line(capsys):
    assert main(["bench", "--shape", "3"]) == 1
    assert capsys.readouterr().err == (
        "whitenorm: expected --shape of 3 to 5 positive sizes, batch and channels first (got [3])\n"
    )


def test_a_missing_package_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.delitem(sys.modules, "whitenorm.cli.inspect", raising=False)
    assert main(["inspect", "resnet18"]) == 1
    assert "whitenorm inspect needs tyro: pip install 'whitenorm[inspect]'" in capsys.readouterr().err


def test_a_missing_package_that_no_extra_installs_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "whitenorm.cli.bench", None)
    with pytest.raises(ModuleNotFoundError):
        main(["bench"])


@pytest.mark.parametrize("args", ["", "--version", "--help", "bench --help", "inspect --help", "bench"])
def test_a_closed_pipe_ends_the_command_quietly(args, monkeypatch, capfd):
    monkeypatch.setattr(bench, "main", lambda _: print("line\n" * 100_000))
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        try:
            code = main(args.split())
        except SystemExit as end:
            code = end.code
        monkeypatch.undo()
    assert code == 1
    assert capfd.readouterr().err == ""


def test_a_reader_that_stops_early_sees_no_error():
    """In a separate process, because Python flushes standard output again when it exits."""
    code = """
import sys
from whitenorm.cli import bench, main
bench.main = lambda args: print("line\\n" * 1_000_000)
sys.exit(main(["bench"]))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_another_broken_pipe_is_an_error(monkeypatch):
    def send_to_a_closed_pipe(_):
        ours, theirs = multiprocessing.connection.Pipe()
        theirs.close()
        ours.send(1)

    monkeypatch.setattr(bench, "main", send_to_a_closed_pipe)
    with pytest.raises(BrokenPipeError):
        main(["bench"])
