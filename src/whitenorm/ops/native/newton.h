// Newton's iteration for whitening and its derivative, on one matrix at a time. The formulas are those of
// solvers/newton.py; matrices are square, zero-padded to a multiple of 8 columns.
#pragma once

#include <cfloat>
#include <cmath>
#include <utility>

#include "product.h"

namespace whitenorm {

// Floor of traces, whose power -3/2 is still finite; the same as in solvers/base.py.
static const float SMALLEST = std::sqrt(FLT_MIN);

// Workspace for one matrix of k features: eight (padded, padded) matrices, and the padded sizes.
struct NewtonSpace {
  Index size, stride;  // a multiple of 4 rows, of 8 columns
  float* matrices[8];

  static Index floats(Index k) { return 8 * round_up(k, LANES) * round_up(k, LANES); }

  NewtonSpace(Index k, float* memory) : size(round_up(k, 4)), stride(round_up(k, LANES)) {
    for (float*& matrix : matrices) {
      matrix = memory;
      memory += stride * stride;
    }
    memset(matrices[0], 0, sizeof(float) * floats(k));
  }
};

// Write Σ/tr Σ plus a ridge of rounding's size to `start` and (3I - start)/2 to `half`; return the trace. The ridge
// keeps the iteration from diverging along an eigenvalue that rounding has made negative.
WN_INLINE float normalize(Index n, Index stride, const float* cov, float* start, float* half) {
  float trace = 0;
  for (Index i = 0; i < n; i++) trace += cov[i * stride + i];
  if (trace < SMALLEST) trace = SMALLEST;  // NaN stays NaN
  float inverse = 1 / trace;
  Vec squares{};
  for (Index i = 0; i < n * stride; i += LANES) {
    Vec v = load(cov + i) * inverse;
    squares += v * v;
    store(start + i, v);
    store(half + i, v * -0.5f);
  }
  float ridge = 2 * FLT_EPSILON * std::sqrt(sum(squares));
  for (Index i = 0; i < n; i++) {
    start[i * stride + i] += ridge;
    half[i * stride + i] = 1.5f - 0.5f * start[i * stride + i];
  }
  return trace;
}

// out = finish(i, j, sum of products) for a result that is symmetric. Only half of it is computed, unless the rows of the
// whole matrix are single vectors, where half would take as many instructions.
template <int TERMS, class Finish>
WN_INLINE void multiply_symmetric(Index n, Index stride, const Product (&terms)[TERMS], float* out, Finish&& finish) {
  auto write = [&](Index i, Index j, auto v) { store(out + i * stride + j, finish(i, j, v)); };
  if (stride <= WIDE_LANES) return multiply(n, stride, terms, write);
  multiply_upper(n, terms, write);
  mirror_upper(n, out, stride);
}

// out = factor · a @ b for symmetric matrices that commute, so that the result is symmetric.
WN_INLINE void multiply_commuting(Index n, Index stride, const float* a, const float* b, float* out, float factor = 1) {
  const Product terms[1] = {{{a, stride, 1}, b, stride, n}};
  multiply_symmetric(n, stride, terms, out, [&](Index, Index, auto v) { return v * factor; });
}

// W of one covariance, both padded.
template <Index SIZE>
static void solve_newton_sized(NewtonSpace& space, const float* cov, int steps, float* whitening) {
  const Index n = SIZE ? SIZE : space.size, stride = SIZE ? round_up(SIZE, LANES) : space.stride, all = n * stride;
  float *y = space.matrices[0], *t = space.matrices[1], *z = space.matrices[2], *free_y = space.matrices[3],
        *free_z = space.matrices[4];
  float root = 1 / std::sqrt(normalize(n, stride, cov, y, t));
  if (steps == 0) {
    memset(whitening, 0, sizeof(float) * all);
    for (Index i = 0; i < n; i++) whitening[i * stride + i] = root;
    return;
  }
  memcpy(z, t, sizeof(float) * all);
  for (int step = 1; step < steps; step++) {
    if (step > 1) {
      multiply_commuting(n, stride, t, z, free_z);
      std::swap(z, free_z);
    }
    multiply_commuting(n, stride, y, t, free_y);
    std::swap(y, free_y);
    multiply_commuting(n, stride, z, y, t, -0.5f);
    for (Index i = 0; i < n; i++) t[i * stride + i] += 1.5f;
  }
  if (steps > 1) {
    multiply_commuting(n, stride, t, z, free_z);
    std::swap(z, free_z);
  }
  for (Index i = 0; i < all; i += LANES) store(whitening + i, load(z + i) * root);
}

// out = factor · (a + aᵀ), padded.
WN_INLINE void symmetrize(Index n, Index stride, const float* a, float factor, float* out) {
  for (Index i = 0; i < n; i++) {
    for (Index j = 0; j <= i; j++) {
      out[i * stride + j] = out[j * stride + i] = (a[i * stride + j] + a[j * stride + i]) * factor;
    }
  }
}

// Gradient of the covariance from that of W: the derivative of W in the direction of the gradient, because W is a
// polynomial of a symmetric matrix. With S = (3I - U)/2, U' = U S², Z' = Z S, the derivative of S takes two products:
//   R = S dS,  T = S (R + Rᵀ/2) - 3/2 R,  dS' = T + Tᵀ,  dZ' = dZ S + Z dS.
template <Index SIZE>
static void differentiate_newton_sized(NewtonSpace& space, const float* grad, const float* cov, const float* whitening,
                                       int steps, float* grad_cov) {
  const Index n = SIZE ? SIZE : space.size, stride = SIZE ? round_up(SIZE, LANES) : space.stride, all = n * stride;
  float *u = space.matrices[0], *s = space.matrices[1], *z = space.matrices[2], *ds = space.matrices[3],
        *dz = space.matrices[4], *r = space.matrices[5], *m = space.matrices[6], *spare = space.matrices[7];
  float trace = normalize(n, stride, cov, u, s), inverse = 1 / trace;
  memset(dz, 0, sizeof(float) * all);
  if (steps > 0) {
    symmetrize(n, stride, grad, -0.25f / std::sqrt(trace), ds);
    memcpy(z, s, sizeof(float) * all);
    memcpy(dz, ds, sizeof(float) * all);
  }
  float* next_dz = grad_cov;  // free until the end
  for (int step = 1; step < steps; step++) {
    {
      const Product terms[1] = {{{s, stride, 1}, ds, stride, n}};
      multiply(n, stride, terms, [&](Index i, Index j, auto v) { store(r + i * stride + j, v); });
    }
    for (Index i = 0; i < n; i += LANES) {
      for (Index j = i; j < stride; j += LANES) {  // m = R + Rᵀ/2, spare = -3/2 (R + Rᵀ)
        Vec a[8], b[8], a_turned[8], b_turned[8];
        WN_UNROLL for (int p = 0; p < 8; p++) {
          a_turned[p] = a[p] = load(r + (i + p) * stride + j);
          b_turned[p] = b[p] = load(r + (j + p) * stride + i);
        }
        transpose(a_turned);
        transpose(b_turned);
        Index rows = minimum(LANES, n - i), rows_below = minimum(LANES, n - j);
        for (Index p = 0; p < rows; p++) {
          store(m + (i + p) * stride + j, a[p] + b_turned[p] * 0.5f);
          store(spare + (i + p) * stride + j, (a[p] + b_turned[p]) * -1.5f);
        }
        for (Index p = 0; j > i && p < rows_below; p++) {
          store(m + (j + p) * stride + i, b[p] + a_turned[p] * 0.5f);
          store(spare + (j + p) * stride + i, (b[p] + a_turned[p]) * -1.5f);
        }
      }
    }
    {
      const Product terms[2] = {{{s, stride, 1}, m, stride, n}, {{m, 1, stride}, s, stride, n}};
      multiply_symmetric(n, stride, terms, ds, [&](Index i, Index j, auto v) {
        return v + load_as<decltype(v)>(spare + i * stride + j);
      });
    }
    multiply_commuting(n, stride, u, s, spare);
    multiply_commuting(n, stride, spare, s, u);
    for (Index i = 0; i < all; i += LANES) store(s + i, load(u + i) * -0.5f);
    for (Index i = 0; i < n; i++) s[i * stride + i] += 1.5f;
    {
      const Product terms[2] = {{{dz, stride, 1}, s, stride, n}, {{z, stride, 1}, ds, stride, n}};
      multiply_symmetric(n, stride, terms, next_dz, [](Index, Index, auto v) { return v; });
      std::swap(dz, next_dz);
    }
    if (step < steps - 1) {
      multiply_commuting(n, stride, z, s, spare);
      std::swap(z, spare);
    }
  }
  Vec along_start{}, along_whitening{};
  for (Index i = 0; i < all; i += LANES) {
    along_start += load(dz + i) * load(cov + i);
    along_whitening += load(grad + i) * load(whitening + i);
  }
  float through_trace = sum(along_start) * inverse + 0.5f * sum(along_whitening);
  for (Index i = 0; i < all; i += LANES) store(grad_cov + i, load(dz + i) * inverse);
  for (Index i = 0; i < n; i++) grad_cov[i * stride + i] -= through_trace * inverse;
}

// Sizes known to the compiler are up to twice as fast where matrices are small.
#define WN_BY_SIZE(function, ...)              \
  switch (space.size) {                        \
    case 8: return function<8>(__VA_ARGS__);   \
    case 16: return function<16>(__VA_ARGS__); \
    case 64: return function<64>(__VA_ARGS__); \
    default: return function<0>(__VA_ARGS__);  \
  }

static void solve_newton(NewtonSpace& space, const float* cov, int steps, float* whitening) {
  WN_BY_SIZE(solve_newton_sized, space, cov, steps, whitening)
}

static void differentiate_newton(NewtonSpace& space, const float* grad, const float* cov, const float* whitening,
                                 int steps, float* grad_cov) {
  WN_BY_SIZE(differentiate_newton_sized, space, grad, cov, whitening, steps, grad_cov)
}

#undef WN_BY_SIZE

}  // namespace whitenorm
