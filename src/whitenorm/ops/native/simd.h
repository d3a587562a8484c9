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

// Load the first n values; the others are 0.
template <class T>
WN_INLINE Vec load_part(const T* p, Index n) {
  if (n >= LANES) return load(p);
  Vec v{};
  for (Index i = 0; i < n; i++) v[i] = to_float(p[i]);
  return v;
}
// The same in three steps at most, because groups of channels often end within a vector.
WN_INLINE Vec load_part(const float* p, Index n) {
  if (n >= LANES) return load(p);
  HalfVec whole{}, rest{};
  if (n & 4) {
    memcpy(&whole, p, 16);
    p += 4;
  }
  if (n & 2) {
    memcpy(&rest, p, 8);
    if (n & 1) rest[2] = p[2];
  } else if (n & 1) {
    rest[0] = p[0];
  }
  if (n & 4) return __builtin_shufflevector(whole, rest, 0, 1, 2, 3, 4, 5, 6, 7);
  return __builtin_shufflevector(rest, whole, 0, 1, 2, 3, 4, 5, 6, 7);
}

// Store the first n values.
template <class T>
WN_INLINE void store_part(T* p, Vec v, Index n) {
  if (n >= LANES) return store(p, v);
  for (Index i = 0; i < n; i++) from_float(v[i], p + i);
}
// The same in four steps at most, because rows of images and tokens often end within a vector.
WN_INLINE void store_part(float* p, Vec v, Index n) {
  if (n >= LANES) return store(p, v);
  HalfVec rest = __builtin_shufflevector(v, v, 0, 1, 2, 3);
  if (n & 4) {
    memcpy(p, &rest, 16);
    rest = __builtin_shufflevector(v, v, 4, 5, 6, 7);
    p += 4;
  }
  if (n & 2) {
    memcpy(p, &rest, 8);
    rest = __builtin_shufflevector(rest, rest, 2, 3, 2, 3);
    p += 2;
  }
  if (n & 1) *p = rest[0];
}

// Vectors of either width, for code that is the same for both.
template <class V>
WN_INLINE V load_as(const float* p) {
  V v;
  memcpy(&v, p, sizeof(V));
  return v;
}
template <class V>
WN_INLINE V broadcast_as(float f) {
  return f - V{};
}
#ifdef __AVX512F__
WN_INLINE Vec low(Wide v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7); }
WN_INLINE Vec high(Wide v) { return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15); }
WN_INLINE void store(float* p, Wide v) { *reinterpret_cast<UnalignedWide*>(p) = v; }
WN_INLINE void store_part(float* p, Wide v, Index n) {
  if (n >= WIDE_LANES) return store(p, v);
  if (n > LANES) {
    store(p, low(v));
    return store_part(p + LANES, high(v), n - LANES);
  }
  store_part(p, low(v), n);
}
#endif

// The first n values of either width; the others are 0.
template <class V>
WN_INLINE V load_part_as(const float* p, Index n) {
  constexpr Index lanes = sizeof(V) / sizeof(float);
  if (n >= lanes) return load_as<V>(p);
  V v{};
  memcpy(&v, p, sizeof(float) * maximum(n, 0));
  return v;
}

WN_INLINE float sum(Vec v) {
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  return v[0] + v[1];
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
