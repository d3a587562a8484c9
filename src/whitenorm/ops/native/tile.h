// Tiles: blocks of an input x[N, G, K, J, P] as K rows of consecutive values in float, which stay in the first-level
// cache while a step computes with them. Loading and storing are the only places that know dtypes and strides.
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
  Index tile, tiles_per_segment, stride;  // values per tile, and floats from one row of a tile to the next

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
  }

  Index tiles() const { return segments * tiles_per_segment; }
  Index floats(Index k) const { return round_up(k, LANES) * stride; }
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
      store(to + p, load_part(row + p, count - p) - value);
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
static void store_typed(const float* y, const View& v, const Traversal& t, const Tile& tile, T* out) {
  Index value_stride = value_stride_of(v, t);
  if (value_stride == 1 || t.length == 1) {
    store_rows(y, t.stride, v.features, tile.count, out, v.stride_k);
  } else {
    store_columns(y, t.stride, v.features, tile.count, out, value_stride);
  }
}

// Load the tile of sample n and group g, minus a shift per feature, which may be null. Values from `count` to a multiple
// of 8 are 0.
static void load_tile(const Tensor& x, const Traversal& t, const Tile& tile, Index n, Index g, const float* shift,
                      float* out) {
  Index at = offset_of(*x.view, t, tile, n, g);
  switch (x.view->dtype) {
    case BFLOAT16: return load_typed(reinterpret_cast<const BFloat16*>(x.data) + at, *x.view, t, tile, shift, out);
    case FLOAT16: return load_typed(reinterpret_cast<const Float16*>(x.data) + at, *x.view, t, tile, shift, out);
    default: return load_typed(reinterpret_cast<const float*>(x.data) + at, *x.view, t, tile, shift, out);
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

// Where the results of a tile are written: float rows go to the tensor itself, others to a tile that finish() stores.
class Output {
 public:
  float* data;
  Index stride, columns;

  Output(const Tensor& tensor, const Traversal& t, const Tile& tile, Index n, Index g, float* scratch)
      : tensor(tensor), t(t), tile(tile), n(n), g(g) {
    is_direct = tensor.view->dtype == FLOAT32 && value_stride_of(*tensor.view, t) == 1;
    data = is_direct ? reinterpret_cast<float*>(tensor.data) + offset_of(*tensor.view, t, tile, n, g) : scratch;
    stride = is_direct ? tensor.view->stride_k : t.stride;
    columns = is_direct ? tile.count : round_up(tile.count, LANES);
  }

  WN_INLINE_METHOD void write(Index i, Index j, Vec v) { store_part(data + i * stride + j, v, columns - j); }

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

// Subtract a value from each row; padding stays 0.
static void subtract(float* tile, Index stride, Index k, Index count, const float* shift) {
  for (Index i = 0; i < k; i++) {
    float* row = tile + i * stride;
    Vec value = broadcast(shift[i]);
    Index p = 0;
    for (; p + LANES <= count; p += LANES) store(row + p, load(row + p) - value);
    for (; p < count; p++) row[p] -= shift[i];
  }
}

// Sum of a row of a tile, padding included. In double, so that an offset of many deviations does not drown it.
WN_INLINE double sum_row(const float* row, Index count) {
  typedef double Double4 __attribute__((vector_size(32)));
  Double4 low{}, high{};
  for (Index p = 0; p < count; p += LANES) {
    Vec v = load(row + p);
    low += __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3), Double4);
    high += __builtin_convertvector(__builtin_shufflevector(v, v, 4, 5, 6, 7), Double4);
  }
  low += high;
  return (low[0] + low[1]) + (low[2] + low[3]);
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
