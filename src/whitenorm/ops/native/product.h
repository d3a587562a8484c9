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

template <class Finish>
WN_INLINE void finish_block(Vec v, Index i, Index j, Finish&& finish) {
  finish(i, j, v);
}
#ifdef __AVX512F__
template <class Finish>
WN_INLINE void finish_block(Wide v, Index i, Index j, Finish&& finish) {
  finish(i, j, low(v));
  finish(i, j + LANES, high(v));
}
#endif

// A block of ROWS × VECS vectors of results of a sum of products, held in registers. Six rows by two vectors leave room
// for the operands in AVX2's 16 registers, eight by two in AVX-512's 32.
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
      WN_UNROLL for (int v = 0; v < VECS; v++) load(right + lanes * v, values[v]);
      WN_UNROLL for (int r = 0; r < ROWS; r++) {
        V factor;
        fill(left[r * term.left.row], factor);
        WN_UNROLL for (int v = 0; v < VECS; v++) total[r][v] += factor * values[v];
      }
    }
  }
  WN_UNROLL for (int r = 0; r < ROWS; r++) {
    WN_UNROLL for (int v = 0; v < VECS; v++) finish_block(total[r][v], i + r, j + lanes * v, finish);
  }
}

// All rows of VECS vectors of columns from column j.
template <class V, int VECS, int TERMS, class Finish>
WN_INLINE void multiply_columns(Index rows, const Product (&terms)[TERMS], Index j, Finish&& finish) {
  for (Index i = 0; i < rows;) {
    Index left = rows - i;
    if (WIDE_LANES > LANES && left >= 8) {
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

// Compute a sum of products of rows × columns and pass each vector of results to finish(row, column, values). The right
// operands are readable up to a multiple of 8 columns.
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
    for (; j < columns; j += 2 * LANES) {
      if (WIDE_LANES > LANES && whole) {
        multiply_block<Wide, 8, 16 / WIDE_LANES>(terms, i, j, finish);
        continue;
      }
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

// Three rows by four: sums over the values of rows of a and b, both contiguous, added to c. Twelve sums and four
// operands fill AVX2's 16 registers.
template <int ROWS>
WN_INLINE void add_outer_rows(Index i, Index first, Index rows_b, Index values, const float* a, const float* b,
                              Index stride, float* c, Index stride_c) {
  const float* row = a + i * stride;
  for (Index j = first; j < rows_b; j += 4) {
    const float* column = b + j * stride;
    Wide wide[ROWS][4];
    WN_UNROLL for (int r = 0; r < ROWS; r++) WN_UNROLL for (int q = 0; q < 4; q++) wide[r][q] = Wide{};
    Index p = 0;
    for (; p + WIDE_LANES <= values; p += WIDE_LANES) {
      Wide x[ROWS];
      WN_UNROLL for (int r = 0; r < ROWS; r++) load(row + r * stride + p, x[r]);
      WN_UNROLL for (int q = 0; q < 4; q++) {
        Wide y;
        load(column + q * stride + p, y);
        WN_UNROLL for (int r = 0; r < ROWS; r++) wide[r][q] += x[r] * y;
      }
    }
    Vec total[ROWS][4];
    WN_UNROLL for (int r = 0; r < ROWS; r++) WN_UNROLL for (int q = 0; q < 4; q++) total[r][q] = fold(wide[r][q]);
    if (p < values) {
      WN_UNROLL for (int q = 0; q < 4; q++) {
        Vec y = load(column + q * stride + p);
        WN_UNROLL for (int r = 0; r < ROWS; r++) total[r][q] += load(row + r * stride + p) * y;
      }
    }
    WN_UNROLL for (int r = 0; r < ROWS; r++) {
      float* out = c + (i + r) * stride_c + j;
      HalfVec sums = sum_each(total[r][0], total[r][1], total[r][2], total[r][3]);
      WN_UNROLL for (int q = 0; q < 4; q++) out[q] += sums[q];
    }
  }
}

// c += a @ bᵀ over a multiple of 8 values; rows of b are a multiple of 4. A symmetric result is complete only on and
// above the diagonal.
template <bool SYMMETRIC>
WN_INLINE void add_outer(Index rows, Index rows_b, Index values, const float* a, const float* b, Index stride, float* c,
                         Index stride_c) {
  for (Index i = 0; i < rows;) {
    Index left = rows - i, first = SYMMETRIC ? i & ~Index(3) : 0;
    if (left == 4 || left == 2) {
      add_outer_rows<2>(i, first, rows_b, values, a, b, stride, c, stride_c);
      i += 2;
    } else if (left == 1) {
      add_outer_rows<1>(i, first, rows_b, values, a, b, stride, c, stride_c);
      i += 1;
    } else {
      add_outer_rows<3>(i, first, rows_b, values, a, b, stride, c, stride_c);
      i += 3;
    }
  }
}

}  // namespace whitenorm
