"""The papers' methods, written out one sample and one group at a time, for tests to compare with.

Nothing here is shared with the package. Gradients come from autograd through these plain formulas.
"""

import torch


def newton(cov, steps=5):
    """IterNorm, algorithm 1, lines 7 to 12, in the uncoupled form printed there."""
    trace = torch.trace(cov)
    scaled = cov / trace
    p = torch.eye(len(cov), dtype=cov.dtype)
    for _ in range(steps):
        p = 0.5 * (3 * p - p @ p @ p @ scaled)
    return p / torch.sqrt(trace)


def zca(cov):
    """DBN, equation 4."""
    values, vectors = torch.linalg.eigh(cov)
    return vectors @ torch.diag(values**-0.5) @ vectors.T


def pca(cov):
    """DBN, section 3.1: eigenvalues in decreasing order, the sign fixed by the first entry."""
    values, vectors = torch.linalg.eigh(cov)
    rows = []
    for i in torch.argsort(values, descending=True):
        vector = vectors[:, i]
        rows.append(values[i] ** -0.5 * (vector if vector[0] >= 0 else -vector))
    return torch.stack(rows)


def cholesky(cov):
    return torch.linalg.inv(torch.linalg.cholesky(cov))


def minimax(cov, polynomials):
    """Compose polynomials of the norm-normalised covariance: with x² an eigenvalue, x becomes ax + bx³ + cx⁵."""
    norm = torch.linalg.matrix_norm(cov)
    y, z = cov / norm, torch.eye(len(cov), dtype=cov.dtype)
    for a, b, c in polynomials:
        u = z @ y
        t = a * torch.eye(len(cov), dtype=cov.dtype) + b * u + c * u @ u
        y, z = y @ t, t @ z
    return z / torch.sqrt(norm)


def inverse_root(cov):
    """Σ^(-1/2) by Denman and Beavers' iteration: smooth also at repeated eigenvalues, unlike an eigendecomposition."""
    scale = torch.trace(cov) / len(cov)
    y, z = cov / scale, torch.eye(len(cov), dtype=cov.dtype)
    for _ in range(30):
        y, z = (y + torch.linalg.inv(z)) / 2, (z + torch.linalg.inv(y)) / 2
    return z / torch.sqrt(scale)


def whitening_matrix(cov, solver):
    if solver is inverse_root:
        return inverse_root(cov)
    name = type(solver).__name__
    if name == "Newton":
        return newton(cov, solver.steps)
    if name == "Minimax":
        return minimax(cov, solver.polynomials)
    return {"ZCA": zca, "PCA": pca, "Cholesky": cholesky}[name](cov)


def mean_and_cov(columns):
    """Return the mean of a d×m matrix, and (1/m)·XcXcᵀ."""
    mean = columns.mean(1)
    centred = columns - mean[:, None]
    return mean, centred @ centred.T / columns.shape[1]


def unroll(x):
    """Return (N, C, ...) as the d×m matrix of DBN, section 3.3: every position is a sample."""
    return torch.cat([sample.reshape(x.shape[1], -1) for sample in x], dim=1)


def roll(columns, like):
    """Undo unroll."""
    positions = like[0, 0].numel()
    return torch.stack([part.reshape(like.shape[1:]) for part in columns.split(positions, dim=1)])


def scale_and_shift(y, weight, bias):
    shape = (1, -1, *[1] * (y.ndim - 2))
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def batch_whitening(x, layer):
    """DBN, algorithm 1, and IterNorm, algorithm 1; returns y, and each group's mean, covariance and matrix."""
    columns, k = unroll(x), layer.group_size
    outputs, statistics = [], []
    for start in range(0, x.shape[1], k):
        group = columns[start : start + k]
        mean, cov = mean_and_cov(group)
        matrix = whitening_matrix(cov + layer.eps * torch.eye(k, dtype=x.dtype), layer.solver)
        outputs.append(matrix @ (group - mean[:, None]))
        statistics.append((mean, cov, matrix))
    return scale_and_shift(roll(torch.cat(outputs), x), layer.weight, layer.bias), statistics


def apply_population(x, layer):
    """Apply the population's mean and matrix of a batch method, group by group."""
    columns, k = unroll(x), layer.group_size
    outputs = []
    for g, start in enumerate(range(0, x.shape[1], k)):
        if layer.population == "whitening":
            matrix = layer.running_whitening[g]
        else:
            matrix = whitening_matrix(layer.running_cov[g] + layer.eps * torch.eye(k, dtype=x.dtype), layer.solver)
        outputs.append(matrix @ (columns[start : start + k] - layer.running_mean[start : start + k, None]))
    return scale_and_shift(roll(torch.cat(outputs), x), layer.weight, layer.bias)


def instance_whitening(x, layer):
    k = layer.group_size
    samples = []
    for sample in x:
        outputs = []
        for start in range(0, x.shape[1], k):
            group = sample[start : start + k].reshape(k, -1)
            mean, cov = mean_and_cov(group)
            matrix = whitening_matrix(cov + layer.eps * torch.eye(k, dtype=x.dtype), layer.solver)
            outputs.append(matrix @ (group - mean[:, None]))
        samples.append(torch.cat(outputs).reshape(sample.shape))
    return scale_and_shift(torch.stack(samples), layer.weight, layer.bias)


def whiten_groups(sample, num_groups, layer):
    """Whiten the groups of one sample by GW, algorithm 1."""
    groups = sample.reshape(num_groups, -1)
    mean, cov = mean_and_cov(groups)
    matrix = whitening_matrix(cov + layer.eps * torch.eye(num_groups, dtype=sample.dtype), layer.solver)
    return (matrix @ (groups - mean[:, None])).reshape(sample.shape)


def group_whitening(x, layer):
    y = torch.stack([whiten_groups(sample, layer.num_groups, layer) for sample in x])
    return scale_and_shift(y, layer.weight, layer.bias)


def layer_whitening(x, layer):
    tokens = x.reshape(-1, *layer.normalized_shape)
    y = torch.stack([whiten_groups(token, layer.num_groups, layer) for token in tokens]).reshape(x.shape)
    y = y if layer.weight is None else y * layer.weight
    return y if layer.bias is None else y + layer.bias


def switchable_whitening(x, layer, training):
    """SW: every sample is whitened with its own mix of statistics."""
    k = layer.group_size
    mean_weights = torch.softmax(layer.mean_logits, 0)
    cov_weights = mean_weights if layer.cov_logits is None else torch.softmax(layer.cov_logits, 0)
    columns = unroll(x)
    samples = []
    for sample in x:
        layer_mean, layer_variance = sample.mean(), ((sample - sample.mean()) ** 2).mean()
        outputs = []
        for g, start in enumerate(range(0, x.shape[1], k)):
            group = sample[start : start + k].reshape(k, -1)
            if training:
                batch_mean, batch_cov = mean_and_cov(columns[start : start + k])
            elif layer.running_mean is not None:
                batch_mean, batch_cov = layer.running_mean[start : start + k], layer.running_cov[g]
            own_mean, own_cov = mean_and_cov(group)
            mean, cov = 0, layer.eps * torch.eye(k, dtype=x.dtype)
            for i, name in enumerate(layer.statistics):
                if name == "bw":
                    m, c = batch_mean, batch_cov
                elif name == "iw":
                    m, c = own_mean, own_cov
                elif name == "bn":
                    m, c = batch_mean, torch.diag(torch.diag(batch_cov))
                elif name == "in":
                    m, c = own_mean, torch.diag(torch.diag(own_cov))
                else:
                    m, c = layer_mean.expand(k), layer_variance * torch.eye(k, dtype=x.dtype)
                mean, cov = mean + mean_weights[i] * m, cov + cov_weights[i] * c
            matrix = whitening_matrix(cov, layer.solver)
            outputs.append(matrix @ (group - mean[:, None]))
        samples.append(torch.cat(outputs).reshape(sample.shape))
    return scale_and_shift(torch.stack(samples), layer.weight, layer.bias)


def w_mse(views, orders, size, eps, normalize):
    """W-MSE by Cholesky, with shrunk covariances: every sub-batch, image and pair of views by itself."""
    total, count = 0, 0
    for order in orders:
        for images in order.split(size):
            white = []
            for view in views:
                part = view[images]
                cov = (1 - eps) * torch.cov(part.T) + eps * torch.eye(part.shape[1], dtype=part.dtype)
                rows = (part - part.mean(0)) @ cholesky(cov).T
                white.append([row / row.norm() if normalize else row for row in rows])
            for i in range(len(views)):
                for j in range(i):
                    for one, other in zip(white[i], white[j], strict=True):
                        distance = (one - other) ** 2
                        total = total + (distance.sum() if normalize else distance.mean())
                        count += 1
    return total / count


def root_newton_schulz(cov, steps):
    """iSQRT-COV, equations 3 to 6: pre-normalization by the trace, coupled iteration, post-compensation."""
    identity = torch.eye(len(cov), dtype=cov.dtype)
    y, z = cov / torch.trace(cov), identity
    for _ in range(steps):
        y, z = 0.5 * y @ (3 * identity - z @ y), 0.5 * (3 * identity - z @ y) @ z
    return torch.sqrt(torch.trace(cov)) * y


def covariance_pooling(x, root, eps=0.0):
    samples = []
    for sample in x:
        _, cov = mean_and_cov(sample.reshape(len(sample), -1))
        matrix = root(cov + eps * torch.eye(len(sample), dtype=x.dtype))
        samples.append(torch.stack([matrix[i, j] for i in range(len(matrix)) for j in range(i, len(matrix))]))
    return torch.stack(samples)


def wct(content, style, alpha, eps):
    """WCT, equations 2 and 3, image by image, with roots by Denman and Beavers' iteration."""
    outputs = []
    for i, image in enumerate(content):
        other = style[i] if len(style) > 1 else style[0]
        columns = image.reshape(len(image), -1)
        identity = torch.eye(len(image), dtype=content.dtype)
        mean, cov = mean_and_cov(columns)
        style_mean, style_cov = mean_and_cov(other.reshape(len(other), -1))
        root = torch.linalg.inv(inverse_root(style_cov + eps * identity))
        y = root @ inverse_root(cov + eps * identity) @ (columns - mean[:, None]) + style_mean[:, None]
        outputs.append((alpha * y + (1 - alpha) * columns).reshape(image.shape))
    return torch.stack(outputs)


def coloring(x, layer, labels):
    """WC: each sample and group of channels by its own matrix, plus that of its class."""
    k, samples = layer.weight.shape[-1], []
    for i, sample in enumerate(x):
        outputs = []
        for g, matrix in enumerate(layer.weight):
            place = slice(g * k, (g + 1) * k)
            shift = layer.bias[place]
            if labels is not None:
                matrix = matrix + layer.class_weight[labels[i], g]
                shift = shift + layer.class_bias[labels[i], place]
            outputs.append(matrix @ sample[place].reshape(k, -1) + shift[:, None])
        samples.append(torch.cat(outputs).reshape(sample.shape))
    return torch.stack(samples)


def orthogonal_newton(weight, steps, center, scale):
    """ONI, algorithm 2, in the uncoupled form printed there."""
    z = weight.flatten(1)
    z = z - z.mean(1, keepdim=True) if center else z
    v = z / torch.sqrt(torch.linalg.matrix_norm(z @ z.T))
    s, b = v @ v.T, torch.eye(len(z), dtype=z.dtype)
    for _ in range(steps):
        b = 1.5 * b - 0.5 * b @ b @ b @ s
    return (scale * b @ v).reshape(weight.shape)


def mean_pair_distance(views, normalize=True):
    """Mean squared distance of two views, pair by pair and image by image."""
    distances = []
    for i in range(len(views)):
        for j in range(i):
            for one, other in zip(views[i], views[j], strict=True):
                if normalize:
                    distances.append(((one / one.norm() - other / other.norm()) ** 2).sum())
                else:
                    distances.append(((one - other) ** 2).mean())
    return sum(distances) / len(distances)


def intl(views, whitened, steps, trace_weight, eps):
    """INTL: each view is normalized as a whole, and each pair of views adds the trace losses of both."""
    white, traces = [], []
    for view in views:
        columns = view if whitened == "instances" else view.T
        centred = columns - columns.mean(1, keepdim=True)
        identity = torch.eye(len(columns), dtype=view.dtype)
        matrix = newton((1 - eps) * torch.cov(columns) + eps * identity, steps)
        z = matrix @ centred
        traces.append(((1 - torch.cov(z).diagonal()) ** 2).sum())
        white.append(z if whitened == "instances" else z.T)
    pairs = [traces[i] + traces[j] for i in range(len(views)) for j in range(i)]
    return mean_pair_distance(white) + trace_weight * sum(pairs) / len(pairs)


def cw_rgp(views, orders, features, num_groups, size, eps, normalize):
    """CW-RGP: orders (iterations, N) of images, and features by view and sub-batch."""
    white = [[] for _ in views]
    for v, view in enumerate(views):
        parts = [view[images] for order in orders for images in order.split(size)]
        for part, order in zip(parts, features[v], strict=True):
            centred = part - part.mean(1, keepdim=True)
            z = torch.zeros_like(part)
            for group in order.split(part.shape[1] // num_groups):
                x = centred[:, group]
                cov = x @ x.T / (len(group) - 1)
                z[:, group] = inverse_root((1 - eps) * cov + eps * torch.eye(size, dtype=x.dtype)) @ x
            white[v].extend(z)
    return mean_pair_distance(white, normalize)


def correlation(image, eps):
    """Covariance of the channels of one image, each divided by its standard deviation."""
    columns = image.reshape(len(image), -1)
    _, cov = mean_and_cov(columns)
    deviation = torch.sqrt(cov.diagonal() + eps)
    return cov / deviation[:, None] / deviation[None, :]


def isw(x, mask, eps):
    """ISW: mean absolute covariance of the pairs in the mask, image by image."""
    total = 0
    for image in x:
        cov = correlation(image, eps)
        pairs = [(i, j) for i in range(len(cov)) for j in range(i + 1, len(cov)) if mask[i, j]]
        total = total + sum(cov[i, j].abs() for i, j in pairs) / len(pairs)
    return total / len(x)


def forward(layer, x):
    """Return the expected output of a layer in its present mode."""
    name = type(layer).__name__
    if name == "SwitchableWhitening":
        return switchable_whitening(x, layer, layer.training or not layer.track_running_stats)
    if name == "InstanceWhitening":
        return instance_whitening(x, layer)
    if name == "GroupWhitening":
        return group_whitening(x, layer)
    if name == "LayerWhitening":
        return layer_whitening(x, layer)
    if layer.training or not layer.track_running_stats:
        return batch_whitening(x, layer)[0]
    return apply_population(x, layer)
