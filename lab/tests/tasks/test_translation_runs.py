"""Translation runs: learning, resuming to the same bits, several processes, scores, and the files they write."""

import itertools
import re
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lab.tests.helpers.text_sets import write_multi30k
from whitenorm_lab import tasks
from whitenorm_lab.tasks.translation.config import GwNmt, Translate
from whitenorm_lab.tasks.translation.scores import TranslationScores, bleu_signature
from whitenorm_lab.tasks.translation.translator import Translator
from whitenorm_lab.tasks.translation.vocabulary import EOS
from whitenorm_lab.training import fit, load
from whitenorm_lab.training.evaluation import Evaluate, evaluate
from whitenorm_lab.training.folder import RunFolder

TINY = {"vocabulary": 80, "encoder_layers": 1, "decoder_layers": 1, "width": 32, "hidden": 32, "heads": 2}
TINY |= {"batch_size": 512, "warmup_steps": 10, "beams": 2, "quiet": True}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_multi30k(tmp_path_factory.mktemp("data"), pairs=400).parent


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    """Folder and outcome of a run with GW."""
    folder = tmp_path_factory.mktemp("runs") / "gw"
    return folder, fit(Translate(**TINY, norm="gw", data=root, lr=0.01, epochs=20, folder=folder))


def test_loss_falls_and_bleu_rises(run):
    _, outcome = run
    assert outcome.latest("test_bleu") > 50
    first, last = outcome.epochs[0], outcome.epochs[-1]
    assert last.score("validation_loss") < 0.5 * first.score("validation_loss")
    assert last.score("test_perplexity") < 5
    assert last.score("validation_bleu") is None
    assert outcome.description == {"pieces": [80, 80]}


def test_files_and_loaded_model(run, root):
    folder, outcome = run
    report = (folder / "translations.txt").read_text(encoding="utf-8")
    assert report.startswith(f"BLEU {outcome.latest('test_bleu'):.2f} of 20 sentences of multi30k, de to en\n")
    assert bleu_signature("en") in report
    sources = (root / "multi30k" / "test_2016_flickr.de").read_text().splitlines()
    assert all(f"source:    {source}\n" in report for source in sources)
    net = load(folder)
    assert isinstance(net, Translator)
    outputs = net.translate(sources[:3], beams=2)
    assert all(f"output:    {output}\n" in report for output in outputs)
    assert evaluate(Evaluate(folder, data=root))["test"] == pytest.approx(outcome.epochs[-1].tests["test"], rel=1e-5)


def test_evaluating_another_set_uses_the_vocabulary_of_the_run(run, root, tmp_path):
    folder, _ = run
    other = write_multi30k(tmp_path, pairs=300, tests=10)
    assert (other / "val.de").read_text() != (root / "multi30k" / "val.de").read_text()
    scores = evaluate(Evaluate(folder, data=root, dataset=f"folder:{other}"))
    assert scores["test"]["bleu"] > 50


def test_resuming_gives_the_same_bits(root, tmp_path):
    from lightning.pytorch.callbacks import LambdaCallback

    def stop(trainer, *rest):
        if trainer.global_step == 12:
            raise InterruptedError

    config = Translate(**TINY, norm="gw", data=root, epochs=2, test_pairs=2, checkpoint_steps=5)
    whole, stopped = (replace(config, folder=tmp_path / name) for name in ("whole", "stopped"))
    fit(whole)
    with pytest.raises(InterruptedError):
        fit(stopped, callbacks=[LambdaCallback(on_train_batch_end=stop)])
    outcome = fit(stopped)
    weights = [RunFolder(folder).read_weights() for folder in (whole.folder, stopped.folder)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert outcome.epochs[-1].scores() == RunFolder(whole.folder).read_result().epochs[-1].scores()


def test_resuming_with_other_sentences_is_an_error(root, tmp_path):
    from lightning.pytorch.callbacks import LambdaCallback

    def stop(trainer, *rest):
        raise InterruptedError

    data = write_multi30k(tmp_path, pairs=400)
    config = Translate(**TINY, data=tmp_path, epochs=1, test_pairs=2, checkpoint_steps=1, folder=tmp_path / "run")
    with pytest.raises(InterruptedError):
        fit(config, callbacks=[LambdaCallback(on_train_epoch_end=stop)])
    # A vocabulary of the same size in bytes, with other letters.
    for side in ("de", "en"):
        file = data / f"train.{side}"
        file.write_text(file.read_text().replace("z", "y").replace("Z", "Y"))
    with pytest.raises(ValueError, match="training sentences that the run started with"):
        fit(config)


@pytest.mark.slow
def test_two_processes_match_one(root):
    """The mean of their gradients, which DDP computes, is that of one process; the sums of their scores are, too."""
    config = Translate(**TINY, norm="gw", data=root, dropout=0.0, test_pairs=5)

    def step(rank, world):
        task = tasks.build_task(config)
        source = task.build_loaders(None, lambda: 0, rank, world)
        torch.manual_seed(0)
        net, train, test = task.build_model(source.description).double(), task.train_scores(), task.test_scores()
        for batch in itertools.islice(source.train, 3):
            task.loss(net, batch, 0, train).backward()
        for batch in source.tests["test"]:
            task.test(net.eval(), batch, test)
        return [parameter.grad for parameter in net.parameters()], train.totals, test.totals

    alone, parts = step(0, 1), [step(rank, 2) for rank in range(2)]
    for whole, *shares in zip(alone[0], *(part[0] for part in parts), strict=True):
        torch.testing.assert_close(sum(shares) / 2, whole, rtol=1e-9, atol=1e-9)
    for i in (1, 2):
        torch.testing.assert_close(parts[0][i] + parts[1][i], alone[i])


def test_other_direction_separate_vocabularies_post_norm(root):
    """English to German, in half precision."""
    options = {**TINY, "joint": False, "share_embeddings": False, "source": "en", "target": "de"}
    options |= {"pre_norm": False, "epochs": 1, "steps": 2, "test_pairs": 2, "precision": "bf16-mixed"}
    outcome = fit(Translate(**options, norm="gw", num_groups=2, data=root))
    assert outcome.latest("test_loss") > 0


def test_long_and_empty_pairs_are_skipped(root, tmp_path, capsys):
    folder = write_multi30k(tmp_path)
    lines = (folder / "train.de").read_text().splitlines()
    (folder / "train.de").write_text("\n".join([" ".join(lines), "", *lines[2:]]) + "\n")
    options = {**TINY, "quiet": False, "progress": False, "data": tmp_path, "steps": 1, "test_pairs": 1}
    with pytest.raises(OSError, match=r"line 2 of .*train\.de"):
        fit(Translate(**options))
    fit(Translate(**options, skip_empty=True, max_length=40))
    output = capsys.readouterr().out
    assert "Skipped 1 pairs with an empty side." in output
    assert "Skipped 1 training pairs of more than 40 pieces." in output
    with pytest.raises(ValueError, match="longest pair"):
        fit(Translate(**options, skip_empty=True, max_length=10000))
    with pytest.raises(ValueError, match="training pairs of at most 1 pieces"):
        fit(Translate(**options, skip_empty=True, max_length=1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "bn"}, "ln or gw"),
        ({"joint": False}, "joint vocabulary for shared embeddings"),
        ({"dropout": 1.0}, "dropout from 0"),
        ({"beams": 0}, "beams to be at least 1"),
        ({"width": 30, "heads": 4}, "multiple of the 4 heads"),
        ({"width": 33, "heads": 3}, "an even width"),
        ({"norm": "gw", "num_groups": 5}, "num_groups"),
        ({"vocabulary": 9000}, "got 9000 pieces"),
    ],
)
def test_wrong_options_are_an_error(options, message, root):
    with pytest.raises(ValueError, match=message):
        fit(Translate(**{**TINY, "data": root, **options}))


def test_preset_has_the_papers_options():
    config = GwNmt()
    sizes = (config.encoder_layers, config.decoder_layers, config.width, config.hidden, config.heads, config.dropout)
    assert sizes == (6, 6, 512, 1024, 4, 0.3)
    assert (config.optimizer, config.betas, config.lr, config.weight_decay) == ("adam", (0.9, 0.98), 5e-4, 1e-4)
    assert (config.schedule, config.warmup_steps, config.label_smoothing) == ("inverse-sqrt", 4000, 0.1)
    assert (config.batch_size, config.epochs, config.dataset, config.norm) == (4096, 50, "iwslt14", "gw")
    assert not config.pre_norm
    assert Translate.from_dict(config.to_dict()).to_dict() == config.to_dict()


def test_preset_states_its_cost():
    """For 160,239 pairs of about 25 pieces per side."""
    with torch.device("meta"):
        net = tasks.build_task(GwNmt(norm="ln")).build_model({"pieces": [10000, 10000]})
    net.to_empty(device="cpu")
    ids = torch.full((1, 25), EOS)
    with FlopCounterMode(display=False) as counter:
        net(ids, ids)
    stated = float(re.search(r"Cost: ([\d.]+) PFLOPs", GwNmt.__doc__)[1])
    assert 3 * counter.get_total_flops() * 160_239 * 50 / 1e15 == pytest.approx(stated, rel=0.05)


def test_scores_are_of_the_whole_set():
    import sacrebleu

    outputs = ["a man walks on the street", "two dogs play", "the old tree", ""]
    references = ["a man walks in the street", "two small dogs play", "the old tree stands", "a boy"]
    scores = TranslationScores("en")
    for part in (slice(0, 1), slice(1, 4)):
        scores.update(torch.tensor(4.0), torch.tensor(8), outputs[part], references[part])
    expected = sacrebleu.corpus_bleu(outputs, [references]).score
    assert scores.compute() == {"loss": 0.5, "perplexity": pytest.approx(1.6487, rel=1e-4), "bleu": expected}
    assert 0 < expected < 100
    # Without translations there is no BLEU.
    untranslated = TranslationScores("en")
    untranslated.update(torch.tensor(4.0), torch.tensor(8))
    assert set(untranslated.compute()) == {"loss", "perplexity"}
