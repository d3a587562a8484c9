// Tiles: blocks of consecutive values of an input x[N, G, K, J, P] in float, which stay in the first-level cache while a
// step computes with them. A tile has one row per feature or one row per value, whichever a product reads along its rows.
// Loading and storing are the only places that know dtypes and strides.
#pragma once

#include <cstdlib>

#include "simd.h"

namespace whitenorm {

enum Dtype { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

// A tensor x[N, G, K, J, P] as it lies in memory; as ops/native/steps.py passes it.
struct View {
  Index n, groups, features, channels, positions;
  Index stride_n, stride_g, stride_k, stride_j, stride_p;
  Index dtype;
};

struct Tensor {
  char* data;
  const View* view;
};

// γ or β: (G, K, J), or null.
struct Parameter {
  const float* data;
  Index features, channels;

  const float* row(Index g, Index k) const { return data + (g * features + k) * channels; }
};

// How the J·P values of a feature are visited: segments of a certain length, each cut into tiles. γ and β are constant
// in a segment where a segment is a channel's positions, and differ from value to value where it is the channels at a
// position, as for tokens and for channels-last images.
struct Traversal {
  Index segments, length;
  bool segments_are_channels;
  Index tile, tiles_per_segment;  // values per tile
  Index stride, row_of_features;  // floats from one row of a tile to the next, by feature and by value

  // Tiles of `budget` floats for all K rows.
  Traversal(const View& x, Index budget) {
    segments_are_channels = x.channels == 1 || (x.positions > 1 && x.stride_p == 1);
    segments = segments_are_channels ? x.channels : x.positions;
    length = segments_are_channels ? x.positions : x.channels;
    Index most = maximum(16, budget / x.features / 16 * 16);
    tiles_per_segment = (length + most - 1) / most;
    tile = tiles_per_segment == 1 ? length : round_up((length + tiles_per_segment - 1) / tiles_per_segment, 16);
    tiles_per_segment = (length + tile - 1) / tile;
    stride = round_up(tile, LANES);
    // Rows a multiple of 256 bytes apart share few places in the cache.
    if (stride % 64 == 0) stride += LANES;
    row_of_features = round_up(x.features, LANES);
  }

  Index tiles() const { return segments * tiles_per_segment; }
  Index floats(Index k) const { return round_up(k, LANES) * stride; }
  // Floats of a matrix of all features with padded rows.
  Index matrix() const { return row_of_features * row_of_features; }
};

// One tile of a traversal.
struct Tile {
  Index segment, start, count;

  Tile(const Traversal& t, Index index)
      : segment(index / t.tiles_per_segment),
        start(index % t.tiles_per_segment * t.tile),
        count(minimum(t.tile, t.length - start)) {}

  // The channel of the first value, and how far γ's entries of neighbouring values are apart.
  Index channel(const Traversal& t) const { return t.segments_are_channels ? segment : start; }
};

// Element offset of the first value of a tile, and the distance of its values.
WN_INLINE Index offset_of(const View& v, const Traversal& t, const Tile& tile, Index n, Index g) {
  Index base = n * v.stride_n + g * v.stride_g;
  return t.segments_are_channels ? base + tile.segment * v.stride_j + tile.start * v.stride_p
                                 : base + tile.segment * v.stride_p + tile.start * v.stride_j;
}
WN_INLINE Index value_stride_of(const View& v, const Traversal& t) {
  return t.segments_are_channels ? v.stride_p : v.stride_j;
}

// Return whether a tensor is written by value: its features are neighbours in memory, as in channels-last images.
WN_INLINE bool is_by_value(const View& v, const Traversal& t) {
  return v.channels == 1 && t.length > 1 && v.stride_p != 1;
}

// Load k rows minus a shift per row, which may be null.
template <class T>
static void load_rows(const T* x, Index stride_k, Index k, Index count, const float* shift, float* out, Index stride) {
  for (Index i = 0; i < k; i++) {
    const T* row = x + i * stride_k;
    float* to = out + i * stride;
    Vec value = broadcast(shift == nullptr ? 0.0f : shift[i]);
    Index p = 0;
    for (; p + LANES <= count; p += LANES) store(to + p, load(row + p) - value);
    if (p < count) {
      // The last 8 values, some of them once more, take less time than the rest one by one.
      if (count >= LANES) {
        store(to + count - LANES, load(row + count - LANES) - value);
      } else {
        store(to, load_part(row, count) - value);
      }
      for (Index q = count; q < round_up(count, LANES); q++) to[q] = 0;
    }
  }
}

// Values of neighbouring features are neighbours in memory: transpose 8×8 blocks.
template <class T>
static void load_columns(const T* x, Index value_stride, Index k, Index count, const float* shift, float* out,
                         Index stride) {
  for (Index p = 0; p < count; p += LANES) {
    Index values = minimum(LANES, count - p);
    for (Index i = 0; i < k; i += LANES) {
      Vec block[8], value = shift == nullptr ? Vec{} : load_part(shift + i, k - i);
      WN_UNROLL for (int q = 0; q < 8; q++) {
        block[q] = q < values ? load_part(x + (p + q) * value_stride + i, k - i) - value : Vec{};
      }
      transpose(block);
      Index rows = minimum(LANES, k - i);
      for (Index r = 0; r < rows; r++) store(out + (i + r) * stride + p, block[r]);
    }
  }
}

template <class T>
static void store_rows(const float* y, Index stride, Index k, Index count, T* out, Index stride_k) {
  for (Index i = 0; i < k; i++) {
    for (Index p = 0; p < count; p += LANES) store_part(out + i * stride_k + p, load(y + i * stride + p), count - p);
  }
}

template <class T>
static void store_columns(const float* y, Index stride, Index k, Index count, T* out, Index value_stride) {
  for (Index p = 0; p < count; p += LANES) {
    Index values = minimum(LANES, count - p);
    for (Index i = 0; i < k; i += LANES) {
      Vec block[8];
      Index rows = minimum(LANES, k - i);
      WN_UNROLL for (int r = 0; r < 8; r++) block[r] = r < rows ? load(y + (i + r) * stride + p) : Vec{};
      transpose(block);
      for (Index q = 0; q < values; q++) store_part(out + (p + q) * value_stride + i, block[q], k - i);
    }
  }
}

// Load `count` rows of k features minus a shift per feature, which may be null; features from k to a multiple of 8 are 0.
template <class T>
static void load_values(const T* x, Index stride_k, Index value_stride, Index k, Index count, const float* shift,
                        float* out, Index stride) {
  for (Index i = 0; i < k; i += LANES) {
    Index rows = minimum(LANES, k - i);
    Vec value = shift == nullptr ? Vec{} : load_part(shift + i, rows);
    if (value_stride != 1) {
      for (Index p = 0; p < count; p++) store(out + p * stride + i, load_part(x + p * value_stride + i, rows) - value);
      continue;
    }
    const T* from = x + i * stride_k;
    for (Index p = 0; p < count; p += LANES) {
      Index values = minimum(LANES, count - p);
      Vec block[8];
      WN_UNROLL for (int r = 0; r < 8; r++) {
        block[r] = r < rows ? load_part(from + r * stride_k + p, values) : Vec{};
      }
      transpose(block);
      for (Index q = 0; q < values; q++) store(out + (p + q) * stride + i, block[q] - value);
    }
  }
}

template <class T>
static void load_typed(const T* x, const View& v, const Traversal& t, const Tile& tile, const float* shift, float* out) {
  Index value_stride = value_stride_of(v, t);
  if (value_stride == 1 || t.length == 1) {
    load_rows(x, v.stride_k, v.features, tile.count, shift, out, t.stride);
  } else {
    load_columns(x, value_stride, v.features, tile.count, shift, out, t.stride);
  }
}

template <class T>
static void load_values_typed(const T* x, const View& v, const Traversal& t, const Tile& tile, const float* shift,
                              float* out) {
  Index value_stride = t.length == 1 ? 1 : value_stride_of(v, t);
  load_values(x, v.stride_k, value_stride, v.features, tile.count, shift, out, t.row_of_features);
}

template <class T>
static void store_typed(const float* y, const View& v, const Traversal& t, const Tile& tile, T* out) {
  Index value_stride = value_stride_of(v, t);
  if (is_by_value(v, t)) {
    store_rows(y, t.row_of_features, tile.count, v.features, out, value_stride);
  } else if (value_stride == 1 || t.length == 1) {
    store_rows(y, t.stride, v.features, tile.count, out, v.stride_k);
  } else {
    store_columns(y, t.stride, v.features, tile.count, out, value_stride);
  }
}

// Load the tile of sample n and group g with one row per feature, minus a shift per feature, which may be null. Values
// from `count` to a multiple of 8 are 0.
static void load_tile(const Tensor& x, const Traversal& t, const Tile& tile, Index n, Index g, const float* shift,
                      float* out) {
  Index at = offset_of(*x.view, t, tile, n, g);
  switch (x.view->dtype) {
    case BFLOAT16: return load_typed(reinterpret_cast<const BFloat16*>(x.data) + at, *x.view, t, tile, shift, out);
    case FLOAT16: return load_typed(reinterpret_cast<const Float16*>(x.data) + at, *x.view, t, tile, shift, out);
    default: return load_typed(reinterpret_cast<const float*>(x.data) + at, *x.view, t, tile, shift, out);
  }
}

// The same with one row per value, t.row_of_features apart.
static void load_tile_by_value(const Tensor& x, const Traversal& t, const Tile& tile, Index n, Index g,
                               const float* shift, float* out) {
  Index at = offset_of(*x.view, t, tile, n, g);
  switch (x.view->dtype) {
    case BFLOAT16:
      return load_values_typed(reinterpret_cast<const BFloat16*>(x.data) + at, *x.view, t, tile, shift, out);
    case FLOAT16:
      return load_values_typed(reinterpret_cast<const Float16*>(x.data) + at, *x.view, t, tile, shift, out);
    default: return load_values_typed(reinterpret_cast<const float*>(x.data) + at, *x.view, t, tile, shift, out);
  }
}

static void store_tile(const float* y, const Tensor& out, const Traversal& t, const Tile& tile, Index n, Index g) {
  Index at = offset_of(*out.view, t, tile, n, g);
  switch (out.view->dtype) {
    case BFLOAT16: return store_typed(y, *out.view, t, tile, reinterpret_cast<BFloat16*>(out.data) + at);
    case FLOAT16: return store_typed(y, *out.view, t, tile, reinterpret_cast<Float16*>(out.data) + at);
    default: return store_typed(y, *out.view, t, tile, reinterpret_cast<float*>(out.data) + at);
  }
}

// Where the results of a tile are written: float rows go to the tensor itself, others to a tile that finish() stores. The
// results have one row per value if the tensor is_by_value, else one row per feature.
class Output {
 public:
  float* data;
  Index stride, columns;

  Output(const Tensor& tensor, const Traversal& t, const Tile& tile, Index n, Index g, float* scratch)
      : tensor(tensor), t(t), tile(tile), n(n), g(g) {
    const View& v = *tensor.view;
    bool by_value = is_by_value(v, t);
    is_direct = v.dtype == FLOAT32 && (by_value || value_stride_of(v, t) == 1);
    data = is_direct ? reinterpret_cast<float*>(tensor.data) + offset_of(v, t, tile, n, g) : scratch;
    if (by_value) {
      stride = is_direct ? v.stride_p : t.row_of_features;
      columns = is_direct ? v.features : t.row_of_features;
    } else {
      stride = is_direct ? v.stride_k : t.stride;
      columns = is_direct ? tile.count : round_up(tile.count, LANES);
    }
  }

  template <class V>
  WN_INLINE_METHOD void write(Index i, Index j, V v) {
    store_part(data + i * stride + j, v, columns - j);
  }

  void finish() {
    if (!is_direct) store_tile(data, tensor, t, tile, n, g);
  }

 private:
  const Tensor& tensor;
  const Traversal& t;
  const Tile& tile;
  Index n, g;
  bool is_direct;
};

// Subtract from `count` rows the means of their columns, and write these. Differences from the first row are summed, so
// that an offset of many deviations does not drown them.
static void center_rows(float* tile, Index stride, Index count, double* mean) {
  for (Index j = 0; j < stride; j += LANES) {
    float* column = tile + j;
    Vec first = load(column), total[4] = {};
    Index p = 0;
    for (; p + 4 <= count; p += 4) {
      WN_UNROLL for (int q = 0; q < 4; q++) total[q] += load(column + (p + q) * stride) - first;
    }
    for (; p < count; p++) total[0] += load(column + p * stride) - first;
    Vec rest = ((total[0] + total[1]) + (total[2] + total[3])) / broadcast(static_cast<float>(count));
    for (Index i = 0; i < LANES; i++) mean[j + i] = double(first[i]) + double(rest[i]);
    for (p = 0; p < count; p++) store(column + p * stride, (load(column + p * stride) - first) - rest);
  }
}

// Add the sums of the rows of a tile, padding included.
static void add_row_sums(const float* tile, Index stride, Index rows, Index count, double* sums) {
  for (Index i = 0; i < rows; i++) {
    Vec total[2] = {};
    const float* row = tile + i * stride;
    Index p = 0;
    for (; p + 2 * LANES <= count; p += 2 * LANES) {
      total[0] += load(row + p);
      total[1] += load(row + p + LANES);
    }
    if (p < count) total[0] += load(row + p);
    sums[i] += sum(total[0] + total[1]);
  }
}

// Add the sums of the first k columns of `count` rows.
static void add_column_sums(const float* tile, Index stride, Index count, Index k, double* sums) {
  for (Index j = 0; j < k; j += LANES) {
    Vec total[2] = {};
    for (Index p = 0; p < count; p++) total[p & 1] += load(tile + p * stride + j);
    total[0] += total[1];
    for (Index i = j; i < minimum(j + LANES, k); i++) sums[i] += total[0][i - j];
  }
}

// Multiply the rows of a tile by γ.
static void scale_tile(float* values, const Traversal& t, const Tile& tile, Index k, const Parameter& gamma, Index g) {
  for (Index i = 0; i < k; i++) {
    const float* factor = gamma.row(g, i) + tile.channel(t);
    float* row = values + i * t.stride;
    for (Index p = 0; p < tile.count; p += LANES) {
      Vec f = t.segments_are_channels ? broadcast(*factor) : load_part(factor + p, tile.count - p);
      store(row + p, load(row + p) * f);
    }
  }
}

// Memory that grows and is used again by the same thread.
struct Scratch {
  float* data = nullptr;
  size_t size = 0;

  ~Scratch() { free(data); }

  // Return null if memory is exhausted.
  float* reserve(size_t floats) {
    if (floats > size) {
      free(data);
      size = 0;
      data = static_cast<float*>(aligned_alloc(64, round_up(static_cast<Index>(floats * sizeof(float)), 64)));
      if (data != nullptr) size = floats;
    }
    return data;
  }
};

// Hands out parts of a block of memory.
struct Arena {
  float* next;
  float* take(Index floats) {
    float* part = next;
    next += round_up(floats, 16);
    return part;
  }
};

}  // namespace whitenorm
