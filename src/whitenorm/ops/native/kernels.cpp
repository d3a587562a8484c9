// The steps of ops/types.py for CPUs, and whitening per sample with all steps at once. A plain C interface without
// headers of torch, so that one binary serves every version; ops/native/steps.py checks all arguments before a call.
//
// Sums over samples are taken in a number of parts that depends on shapes alone, and the parts are added in order, so
// that results do not depend on the number of threads.
#include "newton.h"
#include "product.h"
#include "tile.h"

namespace whitenorm {

// Tiles of 24 KB, or two of 16 KB, leave room in a first-level cache of 32 KB or more.
static const Index ONE_TILE = 6144, TWO_TILES = 4096;
// Parts that a sum is taken in, at most. Enough for as many threads.
static const Index PARTS = 64;
// Values that are summed in a register, at most: rounding errors grow with the length of a sum.
static const Index LONGEST_SUM = 64;
// Starting a thread takes as long as about so many multiplications.
static const double WORK_PER_THREAD = 2e5;

static int count_threads(int most, Index tasks, double work) {
  double useful = work / WORK_PER_THREAD;
  return static_cast<int>(maximum(1, minimum(most, minimum(tasks, useful > 1e6 ? 1000000 : Index(useful)))));
}

// Run task(index, memory) for all indices, with `floats` of memory per thread that starts as zeros. Return 1 if memory
// is exhausted.
template <class Task>
static int run_parallel(Index tasks, int threads, Index floats, Task&& task) {
  int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    static thread_local Scratch scratch;
    float* memory = scratch.reserve(floats);
    if (memory == nullptr) {
#pragma omp atomic write
      failed = 1;
    } else {
      memset(memory, 0, sizeof(float) * floats);
    }
#pragma omp for schedule(static)
    for (Index i = 0; i < tasks; i++) {
      if (memory != nullptr) task(i, memory);
    }
  }
  return failed;
}

// The first of `count` items that belongs to a part.
WN_INLINE Index first_of(Index part, Index parts, Index count) { return part * count / parts; }

// Parts in which the sum of an entry's items is taken, for a number of entries.
static Index count_parts(Index entries, Index items, Index values) {
  return maximum(1, minimum(minimum(items, PARTS / entries), items * values / 256));
}

static double work_of(const View& x) {
  return double(x.n) * x.groups * x.features * x.features * x.channels * x.positions;
}

// Means in double and sums of centred products of the values seen so far.
struct Moments {
  Index k, stride;
  double* mean;
  float* products;  // (round_up(k, 4), stride)
  Index count;

  static Index floats(Index k) { return 2 * round_up(k, 16) + round_up(k, LANES) * round_up(k, LANES) + 16; }

  // Moments that are already in memory.
  Moments(Index k, float* memory, Index count)
      : k(k),
        stride(round_up(k, LANES)),
        mean(reinterpret_cast<double*>(memory)),
        products(memory + 2 * round_up(k, 16)),
        count(count) {}

  // Moments of no values.
  Moments(Index k, float* memory) : Moments(k, memory, 0) { memset(memory, 0, sizeof(float) * floats(k)); }

  // Add `more` values with another mean, whose products are already part of these (Chan's update).
  template <class Number>
  void move_mean(const Number* other, Index more) {
    double weight = double(more) / (count + more);
    float between = static_cast<float>(count * weight);
    alignas(32) float delta[1024 + LANES];
    for (Index i = 0; i < k; i++) {
      delta[i] = static_cast<float>(other[i] - mean[i]);
      mean[i] += (other[i] - mean[i]) * weight;
    }
    for (Index i = k; i < stride; i++) delta[i] = 0;
    if (count > 0) {
      for (Index i = 0; i < k; i++) {
        Vec factor = broadcast(delta[i] * between);
        for (Index j = i / LANES * LANES; j < stride; j += LANES) {
          store(products + i * stride + j, load(products + i * stride + j) + factor * load(delta + j));
        }
      }
    }
    count += more;
  }

  // Add a tile with one row per value, which is centred in place by its own mean.
  void add(float* tile, Index values) {
    double local[1024];
    center_rows(tile, stride, values, local);
    for (Index first = 0; first < values; first += LONGEST_SUM) {
      const float* rows = tile + first * stride;
      const Product terms[1] = {{{rows, 1, stride}, rows, stride, minimum(LONGEST_SUM, values - first)}};
      multiply_upper(round_up(k, 4), terms, [&](Index i, Index j, auto v) {
        float* at = products + i * stride + j;
        store(at, load_as<decltype(v)>(at) + v);
      });
    }
    move_mean(local, values);
  }

  void add(const Moments& other) {
    for (Index i = 0; i < k * stride; i++) products[i] += other.products[i];
    move_mean(other.mean, other.count);
  }

  // Write the mean and the covariance (k, k).
  void finish(float* mean_out, float* cov_out) const {
    float scale = 1.0f / count;
    for (Index i = 0; i < k; i++) mean_out[i] = static_cast<float>(mean[i]);
    for (Index i = 0; i < k; i++) {
      for (Index j = i; j < k; j++) cov_out[i * k + j] = cov_out[j * k + i] = products[i * stride + j] * scale;
    }
  }
};

// Copy a matrix (k, k) to one with padded rows, plus ε on its diagonal.
static void pad(Index k, const float* matrix, Index stride, float* out, float eps = 0) {
  for (Index i = 0; i < k; i++) {
    memcpy(out + i * stride, matrix + i * k, sizeof(float) * k);
    out[i * stride + i] += eps;
  }
}

// Copy a matrix with padded rows to one of (k, k).
static void unpad(Index k, const float* matrix, Index stride, float* out) {
  for (Index i = 0; i < k; i++) memcpy(out + i * k, matrix + i * stride, sizeof(float) * k);
}

// Copy the transpose of a matrix (k, k) to one with padded rows, whose padding stays as it is.
static void pad_transposed(Index k, const float* matrix, Index stride, float* out) {
  for (Index i = 0; i < k; i++) {
    for (Index j = 0; j < k; j++) out[j * stride + i] = matrix[i * k + j];
  }
}

// y = γ·W(x - μ) + β of one tile; μ, γ and β may be null. `padded` has room for a matrix with padded rows.
static void apply_tile(const Tensor& x, const Tensor& y, const Traversal& t, const Tile& tile, Index n, Index g,
                       const float* whitening, const float* mean, const Parameter& gamma, const Parameter& beta,
                       float* values, float* result, float* padded) {
  const Index k = x.view->features, channel = tile.channel(t), columns = round_up(tile.count, LANES);
  Output output(y, t, tile, n, g, result);
  if (is_by_value(*y.view, t)) {
    load_tile_by_value(x, t, tile, n, g, mean, values);
    pad_transposed(k, whitening, t.row_of_features, padded);
    const Product terms[1] = {{{values, t.row_of_features, 1}, padded, t.row_of_features, k}};
    multiply(tile.count, t.row_of_features, terms, [&](Index p, Index i, auto v) {
      if (gamma.data != nullptr) v *= load_part_as<decltype(v)>(gamma.row(g, i), k - i);
      if (beta.data != nullptr) v += load_part_as<decltype(v)>(beta.row(g, i), k - i);
      output.write(p, i, v);
    });
    return output.finish();
  }
  load_tile(x, t, tile, n, g, mean, values);
  const Product terms[1] = {{{whitening, k, 1}, values, t.stride, k}};
  if (gamma.data == nullptr && beta.data == nullptr) {
    multiply(k, columns, terms, [&](Index i, Index j, auto v) { output.write(i, j, v); });
  } else if (t.segments_are_channels) {
    multiply(k, columns, terms, [&](Index i, Index j, auto v) {
      if (gamma.data != nullptr) v *= gamma.row(g, i)[channel];
      if (beta.data != nullptr) v += beta.row(g, i)[channel];
      output.write(i, j, v);
    });
  } else {
    multiply(k, columns, terms, [&](Index i, Index j, auto v) {
      if (gamma.data != nullptr) v *= load_part_as<decltype(v)>(gamma.row(g, i) + channel + j, tile.count - j);
      if (beta.data != nullptr) v += load_part_as<decltype(v)>(beta.row(g, i) + channel + j, tile.count - j);
      output.write(i, j, v);
    });
  }
  output.finish();
}

// Sums of grad·(x - μ)ᵀ and grad. With W, those of γ·grad, and the gradients of γ and β.
struct MapGradients {
  Index k, stride;
  float* matrix;  // (round_up(k, 4), stride)
  double* offset;
  float *segment, *sums;  // the matrix and the sums of one segment

  static Index floats(Index k) { return 2 * round_up(k, LANES) * round_up(k, LANES) + 4 * round_up(k, 16); }

  MapGradients(Index k, float* memory) : k(k), stride(round_up(k, LANES)) {
    matrix = memory;
    segment = matrix + stride * stride;
    offset = reinterpret_cast<double*>(segment + stride * stride);
    sums = segment + stride * stride + 2 * round_up(k, 16);
    memset(memory, 0, sizeof(float) * floats(k));
  }

  // Add one tile of sample n and group g.
  void add(const Tensor& grad, const Tensor& x, const Traversal& t, const Tile& tile, Index n, Index g,
           const float* mean, float* grads, float* values) {
    load_tile_by_value(x, t, tile, n, g, mean, values);
    if (is_by_value(*grad.view, t)) {
      load_tile_by_value(grad, t, tile, n, g, nullptr, grads);
      add_product({grads, 1, stride}, values, tile.count, matrix);
      add_column_sums(grads, stride, tile.count, k, offset);
    } else {
      load_tile(grad, t, tile, n, g, nullptr, grads);
      add_rows(grads, values, t, tile.count, matrix, offset);
    }
  }

  // Add all tiles of sample n and group g, whose map is followed by γ and β.
  void add_scaled(const Tensor& grad, const Tensor& x, const Traversal& t, Index n, Index g, const float* mean,
                  const float* whitening, const Parameter& gamma, float* grad_gamma, float* grad_beta, float* grads,
                  float* by_feature, float* values) {
    const Index channels = x.view->channels;
    for (Index index = 0; index < t.tiles(); index++) {
      Tile tile(t, index);
      load_tile(grad, t, tile, n, g, nullptr, grads);
      load_tile_by_value(x, t, tile, n, g, mean, values);
      if (t.segments_are_channels) {
        if (tile.start == 0) start_segment();
        add_rows(grads, values, t, tile.count, segment, segment_sums());
        if (tile.start + tile.count == t.length) {
          finish_segment(whitening, gamma, g, tile.segment, channels, grad_gamma, grad_beta);
        }
        continue;
      }
      load_tile(x, t, tile, n, g, mean, by_feature);
      const Product terms[1] = {{{whitening, k, 1}, by_feature, t.stride, k}};
      multiply(k, round_up(tile.count, LANES), terms, [&](Index i, Index j, auto v) {
        Index at = (g * k + i) * channels + tile.start + j, count = tile.count - j;
        auto out = load_as<decltype(v)>(grads + i * t.stride + j);
        store_part(grad_gamma + at, load_part_as<decltype(v)>(grad_gamma + at, count) + v * out, count);
        store_part(grad_beta + at, load_part_as<decltype(v)>(grad_beta + at, count) + out, count);
      });
      if (gamma.data != nullptr) scale_tile(grads, t, tile, k, gamma, g);
      add_rows(grads, values, t, tile.count, matrix, offset);
    }
  }

  void add(const MapGradients& other) {
    for (Index i = 0; i < k * stride; i++) matrix[i] += other.matrix[i];
    for (Index i = 0; i < k; i++) offset[i] += other.offset[i];
  }

 private:
  double* segment_sums() { return reinterpret_cast<double*>(sums); }

  // Add grads @ values for values with one row per value.
  void add_product(Left grads, const float* values, Index count, float* into) {
    for (; count > 0; count -= LONGEST_SUM) {
      const Product terms[1] = {{grads, values, stride, minimum(LONGEST_SUM, count)}};
      multiply(k, stride, terms, [&](Index i, Index j, auto v) {
        float* at = into + i * stride + j;
        store(at, load_as<decltype(v)>(at) + v);
      });
      grads.data += LONGEST_SUM * grads.column;
      values += LONGEST_SUM * stride;
    }
  }

  // The same, and the sums of grads, for grads with one row per feature.
  void add_rows(const float* grads, const float* values, const Traversal& t, Index count, float* into, double* total) {
    add_product({grads, t.stride, 1}, values, count, into);
    add_row_sums(grads, t.stride, k, round_up(count, LANES), total);
  }

  void start_segment() {
    memset(segment, 0, sizeof(float) * stride * stride);
    memset(sums, 0, sizeof(double) * k);
  }

  void finish_segment(const float* whitening, const Parameter& gamma, Index g, Index channel, Index channels,
                      float* grad_gamma, float* grad_beta) {
    for (Index i = 0; i < k; i++) {
      float factor = gamma.data == nullptr ? 1.0f : gamma.row(g, i)[channel], along = 0;
      for (Index j = 0; j < k; j++) {
        along += segment[i * stride + j] * whitening[i * k + j];
        matrix[i * stride + j] += factor * segment[i * stride + j];
      }
      grad_gamma[(g * k + i) * channels + channel] += along;
      grad_beta[(g * k + i) * channels + channel] += static_cast<float>(segment_sums()[i]);
      offset[i] += factor * segment_sums()[i];
    }
  }
};

// dx = (γ·W)ᵀ grad + matrix (x - μ) + offset of one tile; without a matrix, the first term alone. `padded` has room for
// two matrices with padded rows.
static void input_gradient_tile(const Tensor& grad, const Tensor& x, const Tensor& out, const Traversal& t,
                                const Tile& tile, Index n, Index g, const float* whitening, const Parameter& gamma,
                                const float* matrix, const float* offset, const float* mean, float* grads,
                                float* values, float* result, float* padded) {
  const Index k = x.view->features, row = t.row_of_features;
  const bool by_value = is_by_value(*out.view, t);
  auto load_as_output = by_value ? load_tile_by_value : load_tile;
  Output output(out, t, tile, n, g, result);
  load_as_output(grad, t, tile, n, g, nullptr, grads);
  if (matrix != nullptr) load_as_output(x, t, tile, n, g, mean, values);
  if (by_value) {
    // The transpose of γ·W times a column is a row times γ·W.
    float* padded_matrix = padded + row * row;
    for (Index i = 0; i < k; i++) {
      float factor = gamma.data == nullptr ? 1.0f : *gamma.row(g, i);
      for (Index j = 0; j < k; j++) padded[i * row + j] = factor * whitening[i * k + j];
    }
    const Product direct = {{grads, row, 1}, padded, row, k};
    if (matrix == nullptr) {
      const Product terms[1] = {direct};
      multiply(tile.count, row, terms, [&](Index p, Index i, auto v) { output.write(p, i, v); });
    } else {
      pad_transposed(k, matrix, row, padded_matrix);
      const Product terms[2] = {direct, {{values, row, 1}, padded_matrix, row, k}};
      multiply(tile.count, row, terms, [&](Index p, Index i, auto v) {
        output.write(p, i, v + load_part_as<decltype(v)>(offset + i, k - i));
      });
    }
    return output.finish();
  }
  if (gamma.data != nullptr) scale_tile(grads, t, tile, k, gamma, g);
  const Index columns = round_up(tile.count, LANES);
  const Product direct = {{whitening, 1, k}, grads, t.stride, k};
  if (matrix == nullptr) {
    const Product terms[1] = {direct};
    multiply(k, columns, terms, [&](Index i, Index j, auto v) { output.write(i, j, v); });
  } else {
    const Product terms[2] = {direct, {{matrix, k, 1}, values, t.stride, k}};
    multiply(k, columns, terms, [&](Index i, Index j, auto v) { output.write(i, j, v + offset[i]); });
  }
  output.finish();
}

}  // namespace whitenorm

using namespace whitenorm;

#define WN_EXPORT __attribute__((visibility("default")))

extern "C" {

// A number that changes with the interface; ops/native/library.py has the same.
WN_EXPORT int wn_version() { return 2; }

// Means (B, G, K) and covariances (B, G, K, K); B is N, or 1 if pooled.
WN_EXPORT int wn_moments(char* x_data, const View* view, int pooled, float* mean, float* cov, int threads) {
  const View& v = *view;
  const Tensor x{x_data, view};
  const Traversal t(v, ONE_TILE);
  const Index k = v.features, tiles = t.tiles(), entries = pooled ? v.groups : v.n * v.groups;
  const Index items = pooled ? v.n * tiles : tiles, parts = count_parts(entries, items, t.tile);
  const Index size = Moments::floats(k);
  float* partial = parts == 1 ? nullptr : static_cast<float*>(malloc(sizeof(float) * size * entries * parts));
  Index* counts = parts == 1 ? nullptr : static_cast<Index*>(malloc(sizeof(Index) * entries * parts));
  int failed = parts > 1 && (partial == nullptr || counts == nullptr);
  if (!failed) {
    failed = run_parallel(entries * parts, count_threads(threads, entries * parts, work_of(v)), t.floats(k) + size,
                          [&](Index task, float* memory) {
      const Index entry = task / parts, part = task % parts, g = entry % v.groups;
      Moments moments(k, parts == 1 ? memory + t.floats(k) : partial + task * size);
      for (Index item = first_of(part, parts, items); item < first_of(part + 1, parts, items); item++) {
        const Tile tile(t, item % tiles);
        load_tile_by_value(x, t, tile, pooled ? item / tiles : entry / v.groups, g, nullptr, memory);
        moments.add(memory, tile.count);
      }
      if (parts == 1) {
        moments.finish(mean + entry * k, cov + entry * k * k);
      } else {
        counts[task] = moments.count;
      }
    });
  }
  if (!failed && parts > 1) {
    // Neighbours first, then pairs of them, because a sum over all parts in order would round as many times.
    auto at = [&](Index task) { return Moments(k, partial + task * size, counts[task]); };
    for (Index entry = 0; entry < entries; entry++) {
      const Index first = entry * parts;
      for (Index step = 1; step < parts; step *= 2) {
        for (Index part = 0; part + step < parts; part += 2 * step) {
          Moments moments = at(first + part);
          moments.add(at(first + part + step));
          counts[first + part] = moments.count;
        }
      }
      at(first).finish(mean + entry * k, cov + entry * k * k);
    }
  }
  free(partial);
  free(counts);
  return failed;
}

// y = γ·W(x - μ) + β with W (B, G, K, K), μ (B, G, K) or null, γ and β (G, K, J) or null.
WN_EXPORT int wn_apply(char* x_data, const View* view, char* y_data, const View* y_view, const float* whitening,
             const float* mean, int pooled, const float* gamma, const float* beta, int threads) {
  const View& v = *view;
  const Tensor x{x_data, view}, y{y_data, y_view};
  const Traversal t(v, ONE_TILE);
  const Index k = v.features, tiles = t.tiles(), tasks = v.n * v.groups * tiles;
  const Parameter scale{gamma, k, v.channels}, shift{beta, k, v.channels};
  return run_parallel(tasks, count_threads(threads, tasks, work_of(v)), 2 * t.floats(k) + t.matrix(),
                      [&](Index task, float* memory) {
    const Index n = task / tiles / v.groups, g = task / tiles % v.groups, entry = pooled ? g : n * v.groups + g;
    float *result = memory + t.floats(k), *padded = result + t.floats(k);
    apply_tile(x, y, t, Tile(t, task % tiles), n, g, whitening + entry * k * k,
               mean == nullptr ? nullptr : mean + entry * k, scale, shift, memory, result, padded);
  });
}

// Sums of grad·(x - μ)ᵀ (B, G, K, K) and grad (B, G, K). With W, for features of several channels: of γ·grad, and the
// gradients (G, K, J) of γ and β.
WN_EXPORT int wn_map_gradients(char* grad_data, const View* grad_view, char* x_data, const View* view, const float* mean,
                     int pooled, const float* whitening, const float* gamma, float* matrix, float* offset,
                     float* grad_gamma, float* grad_beta, int threads) {
  const View& v = *view;
  const Tensor grad{grad_data, grad_view}, x{x_data, view};
  const Traversal t(v, TWO_TILES);
  const Index k = v.features, tiles = t.tiles(), entries = pooled ? v.groups : v.n * v.groups;
  const bool scaled = whitening != nullptr;
  const Index items = pooled ? v.n * tiles : tiles, width = v.groups * k * v.channels;
  // With parameters, each part has several entries and gradients of its own.
  const Index parts = scaled ? minimum(entries, PARTS) : count_parts(entries, items, t.tile);
  const Index size = MapGradients::floats(k), tasks = scaled ? parts : entries * parts;
  const Index partial_floats = scaled ? 2 * width * parts : size * tasks;
  float* partial = static_cast<float*>(calloc(partial_floats, sizeof(float)));
  if (partial == nullptr) return 1;
  const Parameter scale{gamma, k, v.channels};
  auto write = [&](const MapGradients& grads, Index entry) {
    unpad(k, grads.matrix, grads.stride, matrix + entry * k * k);
    for (Index i = 0; i < k; i++) offset[entry * k + i] = static_cast<float>(grads.offset[i]);
  };
  int failed = run_parallel(tasks, count_threads(threads, tasks, 2 * work_of(v)), 3 * t.floats(k) + size,
                            [&](Index task, float* memory) {
    float *grads = memory, *values = grads + t.floats(k), *by_feature = values + t.floats(k),
          *sums = by_feature + t.floats(k);
    if (scaled) {
      for (Index entry = first_of(task, parts, entries); entry < first_of(task + 1, parts, entries); entry++) {
        MapGradients result(k, sums);
        result.add_scaled(grad, x, t, entry / v.groups, entry % v.groups, mean + entry * k, whitening + entry * k * k,
                          scale, partial + 2 * task * width, partial + (2 * task + 1) * width, grads, by_feature, values);
        write(result, entry);
      }
      return;
    }
    const Index entry = task / parts, part = task % parts, g = entry % v.groups;
    MapGradients result(k, partial + task * size);
    for (Index item = first_of(part, parts, items); item < first_of(part + 1, parts, items); item++) {
      result.add(grad, x, t, Tile(t, item % tiles), pooled ? item / tiles : entry / v.groups, g, mean + entry * k,
                 grads, values);
    }
  });
  if (scaled) {
    for (Index i = 0; i < width; i++) {
      float gamma_sum = 0, beta_sum = 0;
      for (Index part = 0; part < parts; part++) {
        gamma_sum += partial[2 * part * width + i];
        beta_sum += partial[(2 * part + 1) * width + i];
      }
      grad_gamma[i] = gamma_sum;
      grad_beta[i] = beta_sum;
    }
  } else {
    failed |= run_parallel(entries, 1, size, [&](Index entry, float* memory) {
      MapGradients total(k, memory);
      for (Index part = 0; part < parts; part++) {
        MapGradients other = total;
        other.matrix = partial + (entry * parts + part) * size;
        other.offset = reinterpret_cast<double*>(other.matrix + (total.segment - total.matrix) * 2);
        total.add(other);
      }
      write(total, entry);
    });
  }
  free(partial);
  return failed;
}

// dx = (γ·W)ᵀ grad + matrix (x - μ) + offset, with W (B, G, K, K), and matrix (C, G, K, K), offset and μ (C, G, K), or
// null. B and C are N or 1.
WN_EXPORT int wn_input_gradient(char* grad_data, const View* grad_view, char* x_data, const View* view, char* out_data,
                      const View* out_view, const float* whitening, int whitening_pooled, const float* gamma,
                      const float* matrix, const float* offset, const float* mean, int matrix_pooled, int threads) {
  const View& v = *view;
  const Tensor grad{grad_data, grad_view}, x{x_data, view}, out{out_data, out_view};
  const Traversal t(v, TWO_TILES);
  const Index k = v.features, tiles = t.tiles(), tasks = v.n * v.groups * tiles;
  const Parameter scale{gamma, k, v.channels};
  return run_parallel(tasks, count_threads(threads, tasks, 2 * work_of(v)),
                      3 * t.floats(k) + 2 * t.matrix(), [&](Index task, float* memory) {
    const Index n = task / tiles / v.groups, g = task / tiles % v.groups, own = n * v.groups + g;
    const Index entry = whitening_pooled ? g : own, other = matrix_pooled ? g : own;
    const bool has_matrix = matrix != nullptr;
    input_gradient_tile(grad, x, out, t, Tile(t, task % tiles), n, g, whitening + entry * k * k, scale,
                        has_matrix ? matrix + other * k * k : nullptr, has_matrix ? offset + other * k : nullptr,
                        has_matrix ? mean + other * k : nullptr, memory, memory + t.floats(k),
                        memory + 2 * t.floats(k), memory + 3 * t.floats(k));
  });
}

// Whitening matrices of `count` covariances (k, k) plus ε by Newton's iteration.
WN_EXPORT int wn_newton(const float* cov, Index count, Index k, float eps, int steps, float* whitening, int threads) {
  const Index padded = round_up(k, LANES) * round_up(k, LANES), stride = round_up(k, LANES);
  const double work = double(count) * k * k * k * 3 * maximum(1, steps);
  return run_parallel(count, count_threads(threads, count, work), NewtonSpace::floats(k) + 2 * padded,
                      [&](Index i, float* memory) {
    NewtonSpace space(k, memory);
    float *own = memory + NewtonSpace::floats(k), *result = own + padded;
    pad(k, cov + i * k * k, stride, own, eps);
    solve_newton(space, own, steps, result);
    unpad(k, result, stride, whitening + i * k * k);
  });
}

// Gradients of the covariances from those of the whitening matrices.
WN_EXPORT int wn_newton_backward(const float* grad, const float* cov, const float* whitening, Index count, Index k, float eps,
                                 int steps, float* grad_cov, int threads) {
  const Index padded = round_up(k, LANES) * round_up(k, LANES), stride = round_up(k, LANES);
  const double work = double(count) * k * k * k * 8 * maximum(1, steps);
  return run_parallel(count, count_threads(threads, count, work), NewtonSpace::floats(k) + 4 * padded,
                      [&](Index i, float* memory) {
    NewtonSpace space(k, memory);
    float *own_grad = memory + NewtonSpace::floats(k), *own_cov = own_grad + padded, *own_whitening = own_cov + padded,
          *result = own_whitening + padded;
    pad(k, grad + i * k * k, stride, own_grad);
    pad(k, cov + i * k * k, stride, own_cov, eps);
    pad(k, whitening + i * k * k, stride, own_whitening);
    differentiate_newton(space, own_grad, own_cov, own_whitening, steps, result);
    unpad(k, result, stride, grad_cov + i * k * k);
  });
}

// Whiten each sample by its own statistics. Written for backward: means (N, G, K), covariances and whitening matrices
// (N, G, K, K).
WN_EXPORT int wn_whiten_samples(char* x_data, const View* view, char* y_data, const View* y_view, const float* gamma,
                      const float* beta, float eps, int steps, float* mean, float* cov, float* whitening, int threads) {
  const View& v = *view;
  const Tensor x{x_data, view}, y{y_data, y_view};
  const Traversal t(v, ONE_TILE);
  const Index k = v.features, tasks = v.n * v.groups, stride = round_up(k, LANES), padded = stride * stride;
  const Parameter scale{gamma, k, v.channels}, shift{beta, k, v.channels};
  const double work = 2 * work_of(v) + double(tasks) * k * k * k * 3 * steps;
  return run_parallel(tasks, count_threads(threads, tasks, work),
                      2 * t.floats(k) + round_up(Moments::floats(k), 16) + NewtonSpace::floats(k) + 3 * padded,
                      [&](Index task, float* memory) {
    Arena arena{memory};
    float *values = arena.take(t.floats(k)), *result = arena.take(t.floats(k));
    Moments moments(k, arena.take(Moments::floats(k)));
    NewtonSpace space(k, arena.take(NewtonSpace::floats(k)));
    float *own_cov = arena.take(padded), *own_whitening = arena.take(padded), *turned = arena.take(padded);
    const Index n = task / v.groups, g = task % v.groups;
    for (Index index = 0; index < t.tiles(); index++) {
      const Tile tile(t, index);
      load_tile_by_value(x, t, tile, n, g, nullptr, values);
      moments.add(values, tile.count);
    }
    moments.finish(mean + task * k, cov + task * k * k);
    pad(k, cov + task * k * k, stride, own_cov, eps);
    solve_newton(space, own_cov, steps, own_whitening);
    unpad(k, own_whitening, stride, whitening + task * k * k);
    for (Index index = 0; index < t.tiles(); index++) {
      apply_tile(x, y, t, Tile(t, index), n, g, whitening + task * k * k, mean + task * k, scale, shift, values,
                 result, turned);
    }
  });
}

// The gradients of x, and of γ and β (G, K, J), from what wn_whiten_samples wrote.
WN_EXPORT int wn_whiten_samples_backward(char* grad_data, const View* grad_view, char* x_data, const View* view, char* out_data,
                               const View* out_view, const float* gamma, const float* mean, const float* cov,
                               const float* whitening, float eps, int steps, float* grad_gamma, float* grad_beta,
                               int threads) {
  const View& v = *view;
  const Tensor grad{grad_data, grad_view}, x{x_data, view}, out{out_data, out_view};
  const Traversal t(v, TWO_TILES);
  const Index k = v.features, entries = v.n * v.groups, stride = round_up(k, LANES), padded = stride * stride;
  const Index parts = minimum(entries, PARTS), width = v.groups * k * v.channels, values_per_feature = v.channels * v.positions;
  const Parameter scale{gamma, k, v.channels};
  const double work = 5 * work_of(v) + double(entries) * k * k * k * 8 * steps;
  float* partial = static_cast<float*>(calloc(2 * width * parts, sizeof(float)));
  if (partial == nullptr) return 1;
  int failed = run_parallel(parts, count_threads(threads, parts, work),
                            3 * t.floats(k) + MapGradients::floats(k) + NewtonSpace::floats(k) + 7 * padded + 64 + k,
                            [&](Index part, float* memory) {
    Arena arena{memory};
    float *grads = arena.take(t.floats(k)), *values = arena.take(t.floats(k)), *result = arena.take(t.floats(k));
    float* sums = arena.take(MapGradients::floats(k));
    NewtonSpace space(k, arena.take(NewtonSpace::floats(k)));
    float *own_cov = arena.take(padded), *own_whitening = arena.take(padded), *grad_cov = arena.take(padded),
          *matrix = arena.take(padded), *turned = arena.take(2 * padded), *offset = arena.take(k);
    for (Index entry = first_of(part, parts, entries); entry < first_of(part + 1, parts, entries); entry++) {
      const Index n = entry / v.groups, g = entry % v.groups;
      const float *entry_mean = mean + entry * k, *entry_whitening = whitening + entry * k * k;
      MapGradients map(k, sums);
      map.add_scaled(grad, x, t, n, g, entry_mean, entry_whitening, scale, partial + 2 * part * width,
                     partial + (2 * part + 1) * width, grads, result, values);
      pad(k, cov + entry * k * k, stride, own_cov, eps);
      pad(k, entry_whitening, stride, own_whitening);
      differentiate_newton(space, map.matrix, own_cov, own_whitening, steps, grad_cov);
      for (Index i = 0; i < k; i++) {
        double through_mean = 0;
        for (Index j = 0; j < k; j++) {
          matrix[i * k + j] = grad_cov[i * stride + j] * (2.0f / values_per_feature);
          through_mean -= entry_whitening[j * k + i] * map.offset[j];
        }
        offset[i] = static_cast<float>(through_mean / values_per_feature);
      }
      for (Index index = 0; index < t.tiles(); index++) {
        input_gradient_tile(grad, x, out, t, Tile(t, index), n, g, entry_whitening, scale, matrix, offset, entry_mean,
                            grads, values, result, turned);
      }
    }
  });
  for (Index i = 0; i < width; i++) {
    float gamma_sum = 0, beta_sum = 0;
    for (Index part = 0; part < parts; part++) {
      gamma_sum += partial[2 * part * width + i];
      beta_sum += partial[(2 * part + 1) * width + i];
    }
    grad_gamma[i] = gamma_sum;
    grad_beta[i] = beta_sum;
  }
  free(partial);
  return failed;
}

// Whiten all samples by the statistics that they share, for features of one channel. Written for backward: means (G, K),
// covariances and whitening matrices (G, K, K).
WN_EXPORT int wn_whiten_batch(char* x_data, const View* view, char* y_data, const View* y_view, const float* gamma,
                      const float* beta, float eps, int steps, float* mean, float* cov, float* whitening, int threads) {
  return wn_moments(x_data, view, 1, mean, cov, threads) |
         wn_newton(cov, view->groups, view->features, eps, steps, whitening, threads) |
         wn_apply(x_data, view, y_data, y_view, whitening, mean, 1, gamma, beta, threads);
}

// The gradients of x, and of γ and β (G, K), from what wn_whiten_batch wrote.
WN_EXPORT int wn_whiten_batch_backward(char* grad_data, const View* grad_view, char* x_data, const View* view, char* out_data,
                             const View* out_view, const float* gamma, const float* mean, const float* cov,
                             const float* whitening, float eps, int steps, float* grad_gamma, float* grad_beta,
                             int threads) {
  const Index groups = view->groups, k = view->features, size = groups * k * k, values = view->n * view->positions;
  float* memory = static_cast<float*>(malloc(sizeof(float) * (2 * size + groups * k)));
  if (memory == nullptr) return 1;
  float *matrix = memory, *grad_cov = matrix + size, *offset = grad_cov + size;
  int failed = wn_map_gradients(grad_data, grad_view, x_data, view, mean, 1, nullptr, nullptr, matrix, grad_beta, nullptr,
                                nullptr, threads);
  for (Index row = 0; row < groups * k; row++) {  // the map is γ·W
    const float factor = gamma == nullptr ? 1.0f : gamma[row];
    float* gradients = matrix + row * k;
    float along = 0;
    for (Index j = 0; j < k; j++) {
      along += gradients[j] * whitening[row * k + j];
      gradients[j] *= factor;
    }
    grad_gamma[row] = along;
  }
  failed |= wn_newton_backward(matrix, cov, whitening, groups, k, eps, steps, grad_cov, threads);
  for (Index i = 0; i < size; i++) grad_cov[i] *= 2.0f / values;
  for (Index g = 0; g < groups; g++) {  // through the mean: -Wᵀ γ·grad
    float* through_mean = offset + g * k;
    memset(through_mean, 0, sizeof(float) * k);
    for (Index i = 0; i < k; i++) {
      const Index row = g * k + i;
      const float factor = (gamma == nullptr ? 1.0f : gamma[row]) * grad_beta[row] / values;
      for (Index j = 0; j < k; j++) through_mean[j] -= factor * whitening[row * k + j];
    }
  }
  failed |= wn_input_gradient(grad_data, grad_view, x_data, view, out_data, out_view, whitening, 1, gamma, grad_cov, offset,
                              mean, 1, threads);
  free(memory);
  return failed;
}

}  // extern "C"
