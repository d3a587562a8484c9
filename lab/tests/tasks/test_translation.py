"""Translation's parts: parallel text, vocabularies, batches by tokens, the network and its search."""

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import whitenorm
from lab.tests.helpers.text_sets import write_multi30k
from whitenorm_lab.tasks.translation.batches import Sequences, TextBatches, TokenBatches
from whitenorm_lab.tasks.translation.config import GwNmt, Translate
from whitenorm_lab.tasks.translation.text import Pairs, read_corpus
from whitenorm_lab.tasks.translation.translator import Translator
from whitenorm_lab.tasks.translation.vocabulary import BOS, EOS, PAD, Vocabulary

NORMS = {"ln": {}, "gw": {"num_groups": 4}}


TINY = {"encoder_layers": 2, "decoder_layers": 2, "width": 16, "hidden": 32, "heads": 2}


def build_translator(norm="ln", pre_norm=True, pieces=12, **options):
    torch.manual_seed(0)
    config = Translate(**TINY, pre_norm=pre_norm, share_embeddings=False)
    net = Translator(Vocabulary(), Vocabulary(), (pieces, pieces), config)
    net = net if norm == "ln" else whitenorm.convert_(net, norm, **options)
    # Norms with weights other than 1 and biases other than 0.
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, whitenorm.LayerWhitening)):
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    return net.double().eval()


@pytest.fixture
def folder(tmp_path):
    return write_multi30k(tmp_path)


def read(folder, **options):
    return read_corpus("multi30k", folder.parent, "de", "en", **options)


def test_read_corpus(folder):
    corpus = read(folder)
    assert [len(split.source) for split in corpus[:3]] == [200, 20, 20]
    assert corpus.skipped == 0
    assert corpus == read_corpus(f"folder:{folder}", None, "de", "en")
    back = read_corpus(f"folder:{folder}", None, "en", "de")
    assert back.train == Pairs(corpus.train.target, corpus.train.source)


def test_only_a_line_feed_ends_a_line(folder):
    for language in ("de", "en"):
        (folder / f"val.{language}").write_bytes("eins\u2028zwei\x0bdrei\r\nvier".encode())
    assert read(folder).validation.source == ["eins\u2028zwei\x0bdrei", "vier"]


def test_iwslt_file_names(folder):
    for language in ("de", "en"):
        (folder / f"val.{language}").rename(folder / f"valid.{language}")
        (folder / f"test_2016_flickr.{language}").rename(folder / f"test.{language}")
    assert len(read_corpus(f"folder:{folder}", None, "de", "en").test.source) == 20


def test_damaged_text_is_an_error(folder):
    content = (folder / "train.de").read_bytes()
    (folder / "train.de").write_bytes(content + b"noch eine\n")
    with pytest.raises(OSError, match=r"train\.de as in .*train\.en \(got 201 and 200\)"):
        read(folder)
    lines = content.split(b"\n")
    (folder / "train.de").write_bytes(b"\n".join([*lines[:3], b"  ", *lines[4:]]))
    with pytest.raises(OSError, match=r"line 4 of .*train\.de.*--skip-empty"):
        read(folder)
    corpus = read(folder, skip_empty=True)
    assert (len(corpus.train.source), len(corpus.train.target), corpus.skipped) == (199, 199, 1)
    (folder / "train.de").write_bytes(b"\n".join([*lines[:3], b"gr\xfcn", *lines[4:]]))
    with pytest.raises(OSError, match=r"train\.de in UTF-8 \(got the byte 0xfc in line 4\)"):
        read(folder)
    (folder / "train.de").unlink()
    with pytest.raises(OSError, match=r"the file .*train\.de"):
        read(folder)


def test_empty_files_are_an_error(folder):
    for language in ("de", "en"):
        (folder / f"val.{language}").write_bytes(b"")
    with pytest.raises(OSError, match=r"sentences in .*val\.de"):
        read(folder)


def test_missing_data_is_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv("WHITENORM_DATA", raising=False)
    with pytest.raises(OSError, match="--data"):
        read_corpus("multi30k", None, "de", "en")
    with pytest.raises(OSError, match=r"iwslt14 \(got none\)"):
        read_corpus("iwslt14", tmp_path, "de", "en")
    with pytest.raises(OSError, match="a folder of parallel text"):
        read_corpus(f"folder:{tmp_path / 'none'}", None, "de", "en")
    with pytest.raises(ValueError, match="multi30k, iwslt14, or folder:PATH"):
        read_corpus("wmt", tmp_path, "de", "en")
    with pytest.raises(ValueError, match="two languages"):
        read_corpus("iwslt14", tmp_path, "de", "de")


def test_vocabulary(folder):
    corpus = read(folder)
    sentences = corpus.train.source + corpus.train.target
    vocabulary, other = (Vocabulary.learn(sentences, 100) for _ in range(2))
    assert vocabulary.model == other.model
    ids = vocabulary.encode(sentences)
    assert all(row[-1] == EOS and EOS not in row[:-1] and max(row) < 100 for row in ids)
    assert vocabulary.decode(ids) == sentences
    loaded = Vocabulary()
    loaded.load_state_dict(vocabulary.state_dict())
    assert loaded.encode(sentences) == ids
    with pytest.raises(ValueError, match="training sentences that the run started with"):
        Vocabulary.learn(sentences, 90).load_state_dict(vocabulary.state_dict())
    with pytest.raises(ValueError, match=r"got 5 pieces; .*[Vv]ocabulary size .*choose another --vocabulary"):
        Vocabulary.learn(sentences, 5)
    with pytest.raises(ValueError, match=r"got 50000 pieces; .*[Vv]ocabulary size"):
        Vocabulary.learn(sentences, 50000)


def build_sequences(number=300):
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 30, (number,), generator=random).tolist()
    source = [[4 + row % 90] * (length - 1) + [EOS] for row, length in enumerate(lengths)]
    return Sequences(source), Sequences([[*row[:-1], 5, EOS] for row in source])


def test_an_epoch_has_every_pair_once():
    source, target = build_sequences()
    batches = TokenBatches(source, target, 128, 0, lambda: 0)
    for epoch in range(3):
        order = batches.order(epoch)
        assert len(order) == len(batches)
        assert torch.cat(order).sort().values.equal(torch.arange(300))
    sizes = [max(batch.source.numel(), batch.target.numel()) for batch in batches]
    assert max(sizes) <= 128
    # Pairs of a batch have similar lengths: there is hardly any padding.
    assert sum(float((batch.target == PAD).sum()) for batch in batches) < 0.1 * sum(sizes)


def test_order_depends_on_seed_and_epoch():
    def batches(seed, step):
        return [batch.source.tolist() for batch in TokenBatches(*build_sequences(), 128, seed, lambda: step)]

    steps = len(TokenBatches(*build_sequences(), 128, 0, lambda: 0))
    assert batches(0, 0) == batches(0, 0)
    assert batches(0, 0)[5:] == batches(0, 5)
    assert batches(0, 0) != batches(0, steps)
    assert batches(0, 0) != batches(1, 0)


def test_processes_share_every_batch():
    pairs = build_sequences()
    whole = list(TokenBatches(*pairs, 128, 0, lambda: 0))
    shares = [list(TokenBatches(*pairs, 128, 0, lambda: 0, rank, 2)) for rank in range(2)]
    assert len(whole) == len(shares[0]) == len(shares[1])
    for batch, *parts in zip(whole, *shares, strict=True):
        rows = [row[row != PAD].tolist() for part in parts for row in part.target]
        assert sorted(rows) == sorted(row[row != PAD].tolist() for row in batch.target)
        # The mean of both processes' losses is the loss of the batch.
        assert sum(part.tokens for part in parts) == batch.tokens == sum(map(len, rows))
        assert all(len(part.source) for part in parts)


def test_pair_too_long_for_a_batch_is_an_error():
    with pytest.raises(ValueError, match=r"longest pair in each of 2 processes \(got 40 tokens"):
        TokenBatches(*build_sequences(), 40, 0, lambda: 0, 0, 2)


def test_text_batches_have_every_pair_once():
    pairs = Pairs([f"s{'x' * (row % 7)}" for row in range(250)], [f"t{row}" for row in range(250)])
    for world in (1, 2):
        shares = [list(TextBatches(pairs, True, rank, world)) for rank in range(world)]
        assert len({len(share) for share in shares}) == 1
        targets = [target for share in shares for batch in share for target in batch.target]
        assert sorted(targets) == sorted(pairs.target)


@pytest.mark.parametrize("pre_norm", [True, False])
def test_forward_matches_torch_layers(pre_norm):
    """The same network from torch.nn's own layers, with the same weights and fairseq's positions, which start at 1."""
    net = build_translator(pre_norm=pre_norm)
    options = {"dim_feedforward": 32, "dropout": 0.0, "batch_first": True, "norm_first": pre_norm}
    encoders = [nn.TransformerEncoderLayer(16, 2, **options).double() for _ in range(2)]
    decoders = [nn.TransformerDecoderLayer(16, 2, **options).double() for _ in range(2)]
    encoder, decoder = net.net.model.encoder, net.net.model.decoder
    for layer, reference in zip([*encoder.layers, *decoder.layers], [*encoders, *decoders], strict=True):
        copy_layer_(reference, layer)
    half = 10000 ** (-torch.arange(8, dtype=torch.float64) / 7)
    angles = torch.arange(1, 7)[:, None] * half
    positions = torch.cat([angles.sin(), angles.cos()], 1)

    source, target = torch.randint(4, 12, (3, 5)), torch.randint(4, 12, (3, 6))
    source[1, 3:] = PAD
    weight = net.net.lm_head.weight
    x = 4 * encoder.embed_tokens.weight[source] + positions[:5]
    for layer in encoders:
        x = layer(x, src_key_padding_mask=source == PAD)
    memory = encoder.layer_norm(x)
    y = 4 * weight[target] + positions
    causal = torch.ones(6, 6, dtype=torch.bool).triu(1)
    for layer in decoders:
        y = layer(y, memory, tgt_mask=causal, memory_key_padding_mask=source == PAD)
    torch.testing.assert_close(net(source, target), decoder.layer_norm(y) @ weight.mT, rtol=0, atol=1e-6)


@torch.no_grad()
def copy_layer_(reference, layer):
    """Copy a layer of transformers into the corresponding layer of torch.nn."""
    attentions, norms = {"self_attn": reference.self_attn}, ["self_attn_layer_norm", "final_layer_norm"]
    if hasattr(layer, "encoder_attn"):
        attentions["encoder_attn"] = reference.multihead_attn
        norms.insert(1, "encoder_attn_layer_norm")
    for name, attention in attentions.items():
        module = getattr(layer, name)
        projections = module.q_proj, module.k_proj, module.v_proj
        attention.in_proj_weight.copy_(torch.cat([linear.weight for linear in projections]))
        attention.in_proj_bias.copy_(torch.cat([linear.bias for linear in projections]))
        attention.out_proj.load_state_dict(module.out_proj.state_dict())
    reference.linear1.load_state_dict(layer.fc1.state_dict())
    reference.linear2.load_state_dict(layer.fc2.state_dict())
    for i, name in enumerate(norms):
        getattr(reference, f"norm{i + 1}").load_state_dict(getattr(layer, name).state_dict())


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_padding_changes_nothing(norm, pre_norm):
    """Exactly for any embedding of padding; to rounding for more or no padding."""
    net = build_translator(norm, pre_norm, **NORMS[norm])
    lengths, target_lengths = [7, 4, 1], [3, 6, 1]
    source = torch.randint(4, 12, (3, 7))
    target = torch.randint(4, 12, (3, 6))
    for row, (length, target_length) in enumerate(zip(lengths, target_lengths, strict=True)):
        source[row, length:] = PAD
        target[row, target_length:] = PAD
    is_inside = target != PAD

    def encode():
        return net.net.model.encoder(source, source != PAD).last_hidden_state

    memory, logits = encode(), net(source, target)
    with torch.no_grad():
        for side in (net.net.model.encoder, net.net.model.decoder):
            side.embed_tokens.weight[PAD] = 50 * torch.randn(16)
    is_seen = source != PAD
    assert encode()[is_seen].equal(memory[is_seen])
    assert not encode().equal(memory)
    # The output weights are the embedding: the logit of padding changes.
    assert net(source, target)[is_inside][:, 1:].equal(logits[is_inside][:, 1:])

    wider = net(F.pad(source, (0, 5)), F.pad(target, (0, 3)))[:, :6]
    torch.testing.assert_close(wider[is_inside][:, 1:], logits[is_inside][:, 1:], rtol=0, atol=1e-12)
    for row, (length, target_length) in enumerate(zip(lengths, target_lengths, strict=True)):
        alone = net(source[row : row + 1, :length], target[row : row + 1, :target_length])[0]
        torch.testing.assert_close(alone[:, 1:], logits[row, :target_length, 1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_later_pieces_change_nothing(norm, pre_norm):
    net = build_translator(norm, pre_norm, **NORMS[norm])
    source, target = torch.randint(4, 12, (2, 5)), torch.randint(4, 12, (2, 6))
    logits = net(source, target)
    target[:, 4:] = 4
    assert net(source, target)[:, :4].equal(logits[:, :4])
    assert not net(source, target)[:, 4:].equal(logits[:, 4:])


def test_padding_has_no_gradient():
    net = build_translator("gw", num_groups=4)
    source = torch.tensor([[5, 6, EOS], [7, EOS, PAD]])
    target = torch.tensor([[5, EOS, PAD], [6, 7, EOS]])
    loss = F.cross_entropy(net(source, target).flatten(0, 1), target.flatten(), ignore_index=PAD)
    loss.backward()
    gradient = net.net.model.encoder.embed_tokens.weight.grad
    assert gradient[PAD].count_nonzero() == 0
    assert gradient[5].count_nonzero() > 0


def test_whitening_replaces_every_norm():
    for pre_norm, norms in ((True, 2 * 2 + 3 * 2 + 2), (False, 2 * 2 + 3 * 2)):
        types = [type(module) for module in build_translator("gw", pre_norm).modules()]
        assert types.count(whitenorm.LayerWhitening) == norms
        assert nn.LayerNorm not in types


def test_embeddings_are_shared_on_request():
    vocabulary = Vocabulary()
    for is_shared in (True, False):
        config = Translate(**TINY, share_embeddings=is_shared)
        model = Translator(vocabulary, vocabulary, (12, 12), config).net
        assert model.lm_head.weight is model.model.decoder.embed_tokens.weight
        assert (model.model.encoder.embed_tokens.weight is model.lm_head.weight) == is_shared
    with pytest.raises(ValueError, match=r"same size for a shared embedding \(got 12 and 13 pieces\)"):
        Translator(vocabulary, vocabulary, (12, 13), Translate(**TINY))


def test_size_of_the_papers_network():
    with torch.device("meta"):
        net = Translator(Vocabulary(), Vocabulary(), (10000, 10000), GwNmt(norm="ln"))
    layers = 6 * (4 * (512 * 512 + 512) + 2 * 512 * 1024 + 512 + 1024 + 2 * 2 * 512)
    layers += 6 * (8 * (512 * 512 + 512) + 2 * 512 * 1024 + 512 + 1024 + 3 * 2 * 512)
    assert sum(parameter.numel() for parameter in net.parameters()) == layers + 2 * 10000 * 512


@torch.no_grad()
def test_initial_weights():
    """As fairseq has them: Xavier's bound for each block, that of a joint matrix for queries, keys and values."""
    torch.manual_seed(0)
    net = Translator(Vocabulary(), Vocabulary(), (1000, 1000), Translate(width=64, hidden=128)).net
    layer = net.model.decoder.layers[0]
    for attention in (layer.self_attn, layer.encoder_attn):
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            assert float(linear.weight.abs().max()) == pytest.approx((6 / (4 * 64)) ** 0.5, rel=0.01)
        assert float(attention.out_proj.weight.abs().max()) == pytest.approx((6 / (2 * 64)) ** 0.5, rel=0.01)
    assert float(layer.fc1.weight.abs().max()) == pytest.approx((6 / (64 + 128)) ** 0.5, rel=0.01)
    assert float(net.lm_head.weight.std()) == pytest.approx(1 / 8, rel=0.02)
    assert layer.fc1.bias.count_nonzero() == 0


@torch.no_grad()
def log_probability(net, source, ids):
    """Of a translation including its end."""
    ids = [*ids, EOS]
    logs = net(source[None], torch.tensor([[BOS, *ids[:-1]]])).log_softmax(-1)[0]
    return float(logs[torch.arange(len(ids)), torch.tensor(ids)].sum())


def search(net, source, **options):
    """The pieces of each translation, without start and end."""
    rows = net.search(source, **options)[:, 1:].tolist()
    return [row[: row.index(EOS)] for row in rows]


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_search_finds_the_best(penalty):
    """With enough beams for all translations: the best of those of up to three pieces, where longer ones are worse."""
    net = build_translator(pieces=6)
    with torch.no_grad():
        # A likely end, so that short translations are the best ones.
        net.net.model.decoder.layer_norm.bias += 0.15 * net.net.lm_head.weight[EOS]
    source = torch.tensor([4, 5, 3, EOS])
    best = search(net, source[None], beams=200, length_penalty=penalty)[0]
    candidates = [ids for length in range(4) for ids in itertools.product([3, 4, 5], repeat=length)]

    def score(ids):
        return log_probability(net, source, ids) / (len(ids) + 1) ** penalty

    expected = max(candidates, key=score)
    assert score(best) >= score(expected)
    if penalty == 0:
        assert tuple(best) == expected


@pytest.mark.parametrize("pre_norm", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_one_beam_is_greedy(norm, pre_norm):
    """Also a check of the search's cache, as the loop here computes every prefix again."""
    net = build_translator(norm, pre_norm, **NORMS[norm])
    source = torch.randint(4, 12, (4, 5))
    source[1, 3:] = PAD
    for row, pieces in zip(source, search(net, source, beams=1), strict=True):
        ids = [BOS]
        while len(ids) <= 2 * int((row != PAD).sum()) + 10:
            logits = net(row[None], torch.tensor([ids]))[0, -1]
            logits[[PAD, BOS]] = -torch.inf
            if (piece := int(logits.argmax())) == EOS:
                break
            ids.append(piece)
        assert pieces == ids[1:]


def test_search_does_not_depend_on_the_batch():
    net = build_translator("gw", num_groups=4)
    source = torch.randint(4, 12, (5, 6))
    source[2:, 3:] = PAD
    together = search(net, source, beams=3)
    assert {len(row) for row in together[2:]} != {len(row) for row in together[:2]}
    for sentence, pieces in zip(source, together, strict=True):
        assert search(net, sentence[sentence != PAD].unsqueeze(0), beams=3) == [pieces]
