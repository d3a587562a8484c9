// Eight floats at a time, by the vector extensions of GCC and Clang: one source for AVX2, AVX-512, SSE and NEON.
#pragma once

#include <cstdint>
#include <cstring>

namespace whitenorm {

using Index = int64_t;
constexpr Index LANES = 8;

typedef float Vec __attribute__((vector_size(32)));
typedef float UnalignedVec __attribute__((vector_size(32), aligned(4)));
typedef double HalfVecDouble __attribute__((vector_size(32)));
typedef float HalfVec __attribute__((vector_size(16)));

#define WN_INLINE static inline __attribute__((always_inline))
#define WN_INLINE_METHOD inline __attribute__((always_inline))
#define WN_UNROLL _Pragma("GCC unroll 16")

// The widest vector of this CPU, in which the products are computed. Everything else takes 8 floats at a time.
#ifdef __AVX512F__
constexpr Index WIDE_LANES = 16;
typedef float Wide __attribute__((vector_size(64)));
typedef float UnalignedWide __attribute__((vector_size(64), aligned(4)));
#else
constexpr Index WIDE_LANES = 8;
typedef Vec Wide;
typedef UnalignedVec UnalignedWide;
#endif

// Storage types. Arithmetic is in float.
struct BFloat16 {
  uint16_t bits;
};
typedef _Float16 Float16;

WN_INLINE Index round_up(Index n, Index multiple) { return (n + multiple - 1) / multiple * multiple; }
WN_INLINE Index minimum(Index a, Index b) { return a < b ? a : b; }
WN_INLINE Index maximum(Index a, Index b) { return a > b ? a : b; }

WN_INLINE Vec broadcast(float f) { return Vec{f, f, f, f, f, f, f, f}; }

WN_INLINE float to_float(float f) { return f; }
WN_INLINE float to_float(Float16 f) { return static_cast<float>(f); }
WN_INLINE float to_float(BFloat16 f) {
  uint32_t bits = static_cast<uint32_t>(f.bits) << 16;
  float result;
  memcpy(&result, &bits, 4);
  return result;
}

WN_INLINE Vec load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
WN_INLINE Vec load(const Float16* p) {
  typedef _Float16 Half8 __attribute__((vector_size(16), aligned(2)));
  return __builtin_convertvector(*reinterpret_cast<const Half8*>(p), Vec);
}
WN_INLINE Vec load(const BFloat16* p) {
  typedef uint16_t Short8 __attribute__((vector_size(16), aligned(2)));
  typedef uint32_t Int8 __attribute__((vector_size(32)));
  return reinterpret_cast<Vec>(__builtin_convertvector(*reinterpret_cast<const Short8*>(p), Int8) << 16);
}

WN_INLINE void from_float(float f, float* p) { *p = f; }
WN_INLINE void from_float(float f, Float16* p) { *p = static_cast<Float16>(f); }
WN_INLINE void from_float(float f, BFloat16* p) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  // Round to the nearest, ties to even; a NaN stays one.
  p->bits = f != f ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

WN_INLINE void store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
template <class T>
WN_INLINE void store(T* p, Vec v) {
  WN_UNROLL for (int i = 0; i < LANES; i++) from_float(v[i], p + i);
}

// Store the first n values.
template <class T>
WN_INLINE void store_part(T* p, Vec v, Index n) {
  if (n >= LANES) return store(p, v);
  for (Index i = 0; i < n; i++) from_float(v[i], p + i);
}

// Load the first n values; the others are 0.
template <class T>
WN_INLINE Vec load_part(const T* p, Index n) {
  if (n >= LANES) return load(p);
  Vec v{};
  for (Index i = 0; i < n; i++) v[i] = to_float(p[i]);
  return v;
}

WN_INLINE void load(const float* p, Vec& v) { v = load(p); }
WN_INLINE void fill(float f, Vec& v) { v = broadcast(f); }
#ifdef __AVX512F__
WN_INLINE void load(const float* p, Wide& v) { v = *reinterpret_cast<const UnalignedWide*>(p); }
WN_INLINE void fill(float f, Wide& v) { v = f - Wide{}; }
WN_INLINE Vec low(Wide v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }
WN_INLINE Vec high(Wide v) { return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15); }
WN_INLINE Vec fold(Wide v) { return low(v) + high(v); }
#endif
WN_INLINE Vec fold(Vec v) { return v; }

WN_INLINE float sum(Vec v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  return v[0] + v[1];
}

// Sums of neighbouring pairs, as in the instruction hadd: a0+a1, a2+a3, b0+b1, b2+b3, a4+a5, ...
WN_INLINE Vec add_pairs(Vec a, Vec b) {
  return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
         __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

// The sums of four vectors.
WN_INLINE HalfVec sum_each(Vec a, Vec b, Vec c, Vec d) {
  Vec s = add_pairs(add_pairs(a, b), add_pairs(c, d));
  return __builtin_shufflevector(s, s, 0, 1, 2, 3) + __builtin_shufflevector(s, s, 4, 5, 6, 7);
}

// Transpose 8×8 values.
WN_INLINE void transpose(Vec (&r)[8]) {
  Vec a[8], b[8];
  WN_UNROLL for (int i = 0; i < 8; i += 2) {
    a[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    a[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  WN_UNROLL for (int i = 0; i < 8; i += 4) {
    WN_UNROLL for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = __builtin_shufflevector(a[i + j], a[i + 2 + j], 0, 1, 8, 9, 4, 5, 12, 13);
      b[i + 2 * j + 1] = __builtin_shufflevector(a[i + j], a[i + 2 + j], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
  WN_UNROLL for (int i = 0; i < 4; i++) {
    r[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    r[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

}  // namespace whitenorm
