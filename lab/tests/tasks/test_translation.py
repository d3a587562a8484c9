"""Translation's parts: parallel text, vocabularies, batches by tokens, the transformer and its search."""

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import whitenorm
from lab.tests.helpers.text_sets import write_multi30k
from whitenorm_lab.tasks.translation import text
from whitenorm_lab.tasks.translation.batches import Sequences, TextBatches, TokenBatches
from whitenorm_lab.tasks.translation.scores import TranslationScores
from whitenorm_lab.tasks.translation.search import beam_search
from whitenorm_lab.tasks.translation.text import Pairs
from whitenorm_lab.tasks.translation.transformer import Shape, Transformer
from whitenorm_lab.tasks.translation.vocabulary import BOS, EOS, PAD, Vocabulary

NORMS = {"ln": {}, "gw": {"num_groups": 4}}


def transformer(norm="ln", pre_norm=True, pieces=12, **options):
    torch.manual_seed(0)
    net = Transformer(pieces, pieces, Shape(2, 2, 16, 32, 2, 0.1, pre_norm))
    net = net if norm == "ln" else whitenorm.convert_(net, norm, **options)
    # Norms that do something of their own.
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, whitenorm.LayerWhitening)):
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    return net.double().eval()


@pytest.fixture
def folder(tmp_path):
    return write_multi30k(tmp_path)


def read(folder, **options):
    return text.read("multi30k", folder.parent, "de", "en", **options)


def test_reading(folder):
    corpus = read(folder)
    assert [len(split.source) for split in corpus[:3]] == [200, 20, 20]
    assert corpus.left_out == 0
    assert corpus == text.read(f"folder:{folder}", None, "de", "en")
    back = text.read(f"folder:{folder}", None, "en", "de")
    assert back.train == Pairs(corpus.train.target, corpus.train.source)


def test_only_a_line_feed_ends_a_line(folder):
    for language in ("de", "en"):
        (folder / f"val.{language}").write_bytes("eins\u2028zwei\x0bdrei\r\nvier".encode())
    assert read(folder).validation.source == ["eins\u2028zwei\x0bdrei", "vier"]


def test_iwslt_names(folder):
    for language in ("de", "en"):
        (folder / f"val.{language}").rename(folder / f"valid.{language}")
        (folder / f"test_2016_flickr.{language}").rename(folder / f"test.{language}")
    assert len(text.read(f"folder:{folder}", None, "de", "en").test.source) == 20


def test_bad_text(folder):
    whole = (folder / "train.de").read_bytes()
    (folder / "train.de").write_bytes(whole + b"noch eine\n")
    with pytest.raises(OSError, match=r"train\.de as in .*train\.en \(got 201 and 200\)"):
        read(folder)
    lines = whole.split(b"\n")
    (folder / "train.de").write_bytes(b"\n".join([*lines[:3], b"  ", *lines[4:]]))
    with pytest.raises(OSError, match=r"line 4 of .*train\.de.*--skip-empty"):
        read(folder)
    corpus = read(folder, skip_empty=True)
    assert (len(corpus.train.source), len(corpus.train.target), corpus.left_out) == (199, 199, 1)
    (folder / "train.de").write_bytes(b"\n".join([*lines[:3], b"gr\xfcn", *lines[4:]]))
    with pytest.raises(OSError, match=r"train\.de in UTF-8 \(got the byte 0xfc in line 4\)"):
        read(folder)
    (folder / "train.de").unlink()
    with pytest.raises(OSError, match=r"the file .*train\.de"):
        read(folder)


def test_empty_files(folder):
    for language in ("de", "en"):
        (folder / f"val.{language}").write_bytes(b"")
    with pytest.raises(OSError, match=r"sentences in .*val\.de"):
        read(folder)


def test_missing_sets(tmp_path, monkeypatch):
    monkeypatch.delenv("WHITENORM_DATA", raising=False)
    with pytest.raises(OSError, match="--data"):
        text.read("multi30k", None, "de", "en")
    with pytest.raises(OSError, match=r"iwslt14 \(got none\)"):
        text.read("iwslt14", tmp_path, "de", "en")
    with pytest.raises(OSError, match="a folder of parallel text"):
        text.read(f"folder:{tmp_path / 'none'}", None, "de", "en")
    with pytest.raises(ValueError, match="multi30k, iwslt14, or folder:PATH"):
        text.read("wmt", tmp_path, "de", "en")
    with pytest.raises(ValueError, match="two languages"):
        text.read("iwslt14", tmp_path, "de", "de")


def test_vocabulary(folder):
    corpus = read(folder)
    sentences = corpus.train.source + corpus.train.target
    vocabulary, again = (Vocabulary.of(sentences, 100) for _ in range(2))
    assert vocabulary.model == again.model
    ids = vocabulary.encode(sentences)
    assert all(row[-1] == EOS and EOS not in row[:-1] and max(row) < 100 for row in ids)
    assert vocabulary.decode(ids) == sentences
    # Once more as a checkpoint has it.
    loaded = Vocabulary()
    loaded.load_state_dict(vocabulary.state_dict())
    assert loaded.encode(sentences) == ids
    with pytest.raises(ValueError, match="training sentences that the run began with"):
        Vocabulary.of(sentences, 90).load_state_dict(vocabulary.state_dict())
    with pytest.raises(ValueError, match=r"got 5 pieces; .*[Vv]ocabulary size .*choose another --vocabulary"):
        Vocabulary.of(sentences, 5)
    with pytest.raises(ValueError, match=r"got 50000 pieces; .*[Vv]ocabulary size"):
        Vocabulary.of(sentences, 50000)


def sequences(number=300):
    drawn = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 30, (number,), generator=drawn).tolist()
    source = [[4 + row % 90] * (length - 1) + [EOS] for row, length in enumerate(lengths)]
    return Sequences(source), Sequences([[*row[:-1], 5, EOS] for row in source])


def test_batches_have_every_pair_once():
    source, target = sequences()
    batches = TokenBatches(source, target, 128, 0, lambda: 0)
    for epoch in range(3):
        order = batches.order(epoch)
        assert len(order) == len(batches)
        assert torch.cat(order).sort().values.equal(torch.arange(300))
    sizes = [max(batch.source.numel(), batch.target.numel()) for batch in batches]
    assert max(sizes) <= 128
    # Of like lengths: hardly any padding.
    assert sum(float((batch.target == PAD).sum()) for batch in batches) < 0.1 * sum(sizes)


def test_order_follows_from_seed_and_epoch():
    def batches(seed, step):
        return [batch.source.tolist() for batch in TokenBatches(*sequences(), 128, seed, lambda: step)]

    steps = len(TokenBatches(*sequences(), 128, 0, lambda: 0))
    assert batches(0, 0) == batches(0, 0)
    assert batches(0, 0)[5:] == batches(0, 5)
    assert batches(0, 0) != batches(0, steps)
    assert batches(0, 0) != batches(1, 0)


def test_processes_share_every_batch():
    pairs = sequences()
    whole = list(TokenBatches(*pairs, 128, 0, lambda: 0))
    shares = [list(TokenBatches(*pairs, 128, 0, lambda: 0, rank, 2)) for rank in range(2)]
    assert len(whole) == len(shares[0]) == len(shares[1])
    for batch, *parts in zip(whole, *shares, strict=True):
        rows = [row[row != PAD].tolist() for part in parts for row in part.target]
        assert sorted(rows) == sorted(row[row != PAD].tolist() for row in batch.target)
        # The mean of both processes' losses is the loss of the batch.
        assert sum(part.tokens for part in parts) == batch.tokens == sum(map(len, rows))
        assert all(len(part.source) for part in parts)


def test_too_long_for_a_batch():
    with pytest.raises(ValueError, match=r"longest pair in each of 2 processes \(got 40 tokens"):
        TokenBatches(*sequences(), 40, 0, lambda: 0, 0, 2)


def test_text_batches():
    pairs = Pairs([f"s{'x' * (row % 7)}" for row in range(250)], [f"t{row}" for row in range(250)])
    for world in (1, 2):
        shares = [list(TextBatches(pairs, True, rank, world)) for rank in range(world)]
        assert len({len(share) for share in shares}) == 1
        found = [target for share in shares for batch in share for target in batch.target]
        assert sorted(found) == sorted(pairs.target)


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_padding_changes_nothing(norm, pre_norm):
    """Exactly: whatever vector padding has, and to rounding where there is more of it or none."""
    net = transformer(norm, pre_norm, **NORMS[norm])
    lengths, target_lengths = [7, 4, 1], [3, 6, 1]
    source = torch.randint(4, 12, (3, 7))
    target = torch.randint(4, 12, (3, 6))
    for row, (one, other) in enumerate(zip(lengths, target_lengths, strict=True)):
        source[row, one:] = PAD
        target[row, other:] = PAD
    inside = target != PAD

    memories, logits = net.encode(source), net(source, target)
    with torch.no_grad():
        for embedding in (net.source, net.target):
            embedding.pieces.weight[PAD] = 50 * torch.randn(16)
    seen = (source != PAD)[:, None, :, None]
    for before, after in zip(memories, net.encode(source), strict=True):
        for one, other in ((before.keys, after.keys), (before.values, after.values)):
            assert one.where(seen, 0).equal(other.where(seen, 0))
            assert not one.equal(other)
    # The output's weights are the embedding: padding's own logit is another one.
    assert net(source, target)[inside][:, 1:].equal(logits[inside][:, 1:])

    wider = net(F.pad(source, (0, 5)), F.pad(target, (0, 3)))[:, :6]
    torch.testing.assert_close(wider[inside][:, 1:], logits[inside][:, 1:], rtol=0, atol=1e-12)
    for row, (one, other) in enumerate(zip(lengths, target_lengths, strict=True)):
        alone = net(source[row : row + 1, :one], target[row : row + 1, :other])[0]
        torch.testing.assert_close(alone[:, 1:], logits[row, :other, 1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_the_future_changes_nothing(norm):
    net = transformer(norm, **NORMS[norm])
    source, target = torch.randint(4, 12, (2, 5)), torch.randint(4, 12, (2, 6))
    logits = net(source, target)
    target[:, 4:] = 4
    assert net(source, target)[:, :4].equal(logits[:, :4])
    assert not net(source, target)[:, 4:].equal(logits[:, 4:])


def test_padding_has_no_gradient():
    net = transformer("gw", num_groups=4)
    source = torch.tensor([[5, 6, EOS], [7, EOS, PAD]])
    target = torch.tensor([[5, EOS, PAD], [6, 7, EOS]])
    loss = F.cross_entropy(net(source, target).flatten(0, 1), target.flatten(), ignore_index=PAD)
    loss.backward()
    assert net.source.pieces.weight.grad[PAD].count_nonzero() == 0
    assert net.source.pieces.weight.grad[5].count_nonzero() > 0


def test_whitening_is_everywhere():
    for pre_norm, norms in ((True, 2 * 2 + 3 * 2 + 2), (False, 2 * 2 + 3 * 2)):
        kinds = [type(module) for module in transformer("gw", pre_norm).modules()]
        assert kinds.count(whitenorm.LayerWhitening) == norms
        assert nn.LayerNorm not in kinds


def test_the_papers_base():
    with torch.device("meta"):
        net = Transformer(10000, 10000, Shape())
    layers = 6 * (4 * (512 * 512 + 512) + 2 * 512 * 1024 + 512 + 1024 + 2 * 2 * 512)
    layers += 6 * (8 * (512 * 512 + 512) + 2 * 512 * 1024 + 512 + 1024 + 3 * 2 * 512)
    assert sum(parameter.numel() for parameter in net.parameters()) == layers + 2 * 10000 * 512


@pytest.mark.parametrize("norm", NORMS)
def test_decoding_step_by_step(norm):
    """With what is kept of the past, and several rows a source, as in the search."""
    net = transformer(norm, **NORMS[norm])
    source, target = torch.randint(4, 12, (2, 5)), torch.randint(4, 12, (6, 4))
    source[1, 3:] = PAD
    whole = net(source.repeat_interleave(3, 0), target)
    memory, past = net.encode(source), [None, None]
    for i in range(4):
        logits, past = net.decode(target[:, i : i + 1], memory, past)
        torch.testing.assert_close(logits[:, 0], whole[:, i], rtol=0, atol=1e-12)


@torch.no_grad()
def log_p(net, source, ids):
    """Of a translation with its end."""
    ids = [*ids, EOS]
    gains = net(source[None], torch.tensor([[BOS, *ids[:-1]]])).log_softmax(-1)[0]
    return float(gains[torch.arange(len(ids)), torch.tensor(ids)].sum())


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_search_finds_the_best(penalty):
    """Beams for all there is: the best of all translations of up to three pieces, where longer ones are worse."""
    net = transformer(pieces=6)
    with torch.no_grad():
        # An end that is likely, so that short translations are the best ones.
        net.decoder_norm.bias += 0.15 * net.target.pieces.weight[EOS]
    source = torch.tensor([4, 5, 3, EOS])
    found = beam_search(net, source[None], beams=200, penalty=penalty)[0]
    every = [ids for length in range(4) for ids in itertools.product([3, 4, 5], repeat=length)]

    def score(ids):
        return log_p(net, source, ids) / (len(ids) + 1) ** penalty

    best = max(every, key=score)
    assert score(found) >= score(best)
    if penalty == 0:
        assert tuple(found) == best


def test_greedy_search():
    net = transformer()
    source = torch.randint(4, 12, (4, 5))
    for row, found in zip(source, beam_search(net, source, beams=1), strict=True):
        ids = [BOS]
        while len(ids) <= 2 * 5 + 10:
            gains = net(row[None], torch.tensor([ids]))[0, -1]
            gains[[PAD, BOS]] = -torch.inf
            if (piece := int(gains.argmax())) == EOS:
                break
            ids.append(piece)
        assert found == ids[1:]


def test_search_of_a_batch_is_that_of_each():
    net = transformer("gw", num_groups=4)
    source = torch.randint(4, 12, (5, 6))
    source[2:, 3:] = PAD
    together = beam_search(net, source, beams=3)
    for sentence, found in zip(source, together, strict=True):
        assert beam_search(net, sentence[sentence != PAD].unsqueeze(0), beams=3) == [found]


def test_scores_are_those_of_the_whole_set():
    import sacrebleu

    outputs = ["a man walks on the street", "two dogs play", "the old tree", ""]
    references = ["a man walks in the street", "two small dogs play", "the old tree stands", "a boy"]
    scores = TranslationScores("en")
    for part in (slice(0, 1), slice(1, 4)):
        scores.update(torch.tensor(4.0), torch.tensor(8), outputs[part], references[part])
    expected = sacrebleu.corpus_bleu(outputs, [references]).score
    assert scores.compute() == {"loss": 0.5, "perplexity": pytest.approx(1.6487, rel=1e-4), "bleu": expected}
    assert 0 < expected < 100
    # A set that is not translated has no BLEU.
    silent = TranslationScores("en")
    silent.update(torch.tensor(4.0), torch.tensor(8))
    assert set(silent.compute()) == {"loss", "perplexity"}
