// Matrix products of small matrices that lie in the cache: two micro-kernels for everything.
#pragma once

#include "simd.h"

namespace whitenorm {

// The left operand of a product: element (i, p) is data[i * row + p * column], so that a transpose is an exchange.
struct Left {
  const float* data;
  Index row, column;
};

// One product left @ right, where right is (depth, columns) with rows `stride` apart.
struct Product {
  Left left;
  const float* right;
  Index stride, depth;
};

// A block of ROWS × VECS vectors of results of a sum of products, held in registers. Six rows by two vectors leave room
// for the operands in AVX2's 16 registers, eight by two or sixteen by one in AVX-512's 32.
template <class V, int ROWS, int VECS, int TERMS, class Finish>
WN_INLINE void multiply_block(const Product (&terms)[TERMS], Index i, Index j, Finish&& finish) {
  constexpr Index lanes = sizeof(V) / sizeof(float);
  V total[ROWS][VECS];
  WN_UNROLL for (int r = 0; r < ROWS; r++) WN_UNROLL for (int v = 0; v < VECS; v++) total[r][v] = V{};
  WN_UNROLL for (int t = 0; t < TERMS; t++) {
    const Product& term = terms[t];
    const float* left = term.left.data + i * term.left.row;
    const float* right = term.right + j;
    for (Index p = 0; p < term.depth; p++, left += term.left.column, right += term.stride) {
      V values[VECS];
      WN_UNROLL for (int v = 0; v < VECS; v++) values[v] = load_as<V>(right + lanes * v);
      WN_UNROLL for (int r = 0; r < ROWS; r++) {
        V factor = broadcast_as<V>(left[r * term.left.row]);
        WN_UNROLL for (int v = 0; v < VECS; v++) total[r][v] += factor * values[v];
      }
    }
  }
  WN_UNROLL for (int r = 0; r < ROWS; r++) {
    WN_UNROLL for (int v = 0; v < VECS; v++) finish(i + r, j + lanes * v, total[r][v]);
  }
}

// All rows of VECS vectors of columns from column j.
template <class V, int VECS, int TERMS, class Finish>
WN_INLINE void multiply_columns(Index rows, const Product (&terms)[TERMS], Index j, Finish&& finish) {
  for (Index i = 0; i < rows;) {
    Index left = rows - i;
    if (WIDE_LANES > LANES && VECS == 1 && left >= 16) {
      multiply_block<V, 16, VECS>(terms, i, j, finish);
      i += 16;
    } else if (WIDE_LANES > LANES && left >= 8) {
      multiply_block<V, 8, VECS>(terms, i, j, finish);
      i += 8;
    } else if (WIDE_LANES == LANES && left >= 6 && left != 8) {
      multiply_block<V, 6, VECS>(terms, i, j, finish);
      i += 6;
    } else if (left >= 4) {
      multiply_block<V, 4, VECS>(terms, i, j, finish);
      i += 4;
    } else {
      multiply_block<V, 1, VECS>(terms, i, j, finish);
      i += 1;
    }
  }
}

// Compute a sum of products of rows × columns and pass each vector of results, of either width, to finish(row, column,
// values). The right operands are readable up to a multiple of 8 columns.
template <int TERMS, class Finish>
WN_INLINE void multiply(Index rows, Index columns, const Product (&terms)[TERMS], Finish&& finish) {
  Index j = 0;
  for (; j + 2 * WIDE_LANES <= columns; j += 2 * WIDE_LANES) multiply_columns<Wide, 2>(rows, terms, j, finish);
  if (j + WIDE_LANES <= columns) {
    multiply_columns<Wide, 1>(rows, terms, j, finish);
    j += WIDE_LANES;
  }
  if (j < columns) multiply_columns<Vec, 1>(rows, terms, j, finish);
}

// The same for a symmetric result of size n, a multiple of 4: 8×8 blocks on and above the diagonal.
template <int TERMS, class Finish>
WN_INLINE void multiply_upper(Index n, const Product (&terms)[TERMS], Finish&& finish) {
  Index columns = round_up(n, LANES);
  for (Index i = 0; i < n; i += LANES) {
    bool whole = n - i >= LANES;
    Index j = i;
    if (((columns - i) / LANES) & 1) {
      if (whole) {
        multiply_block<Vec, 8, 1>(terms, i, j, finish);
      } else {
        multiply_block<Vec, 4, 1>(terms, i, j, finish);
      }
      j += LANES;
    }
    if (WIDE_LANES > LANES && whole) {
      for (; j + 2 * WIDE_LANES <= columns; j += 2 * WIDE_LANES) multiply_block<Wide, 8, 2>(terms, i, j, finish);
      if (j < columns) multiply_block<Wide, 8, 1>(terms, i, j, finish);
      continue;
    }
    for (; j < columns; j += 2 * LANES) {
      multiply_block<Vec, 4, 2>(terms, i, j, finish);
      if (whole) multiply_block<Vec, 4, 2>(terms, i + 4, j, finish);
    }
  }
}

// Fill the lower blocks of a symmetric matrix from the upper ones.
WN_INLINE void mirror_upper(Index n, float* matrix, Index stride) {
  for (Index i = 0; i < n; i += LANES) {
    for (Index j = i + LANES; j < n; j += LANES) {
      Vec block[8];
      WN_UNROLL for (int r = 0; r < 8; r++) block[r] = load(matrix + (i + r) * stride + j);
      transpose(block);
      Index rows = minimum(LANES, n - j);
      for (Index r = 0; r < rows; r++) store(matrix + (j + r) * stride + i, block[r]);
    }
  }
}

}  // namespace whitenorm
