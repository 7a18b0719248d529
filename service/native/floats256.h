// Eight numbers in a register: what every instruction set shares that has AVX2 and FMA, and no wider registers.

#pragma once

#include <immintrin.h>

namespace {

struct Floats256 {
    static constexpr int lanes = 8;  // floats, and 32-bit sums, in a vector
    static constexpr int paired = 1;  // numbers in a lane of what attention multiplies

    using F = __m256;
    using I = __m256i;

    static I none() { return _mm256_setzero_si256(); }
    static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
    static I activations(const void* p) {  // the same group in every lane
        int word;
        __builtin_memcpy(&word, p, 4);
        return _mm256_set1_epi32(word);
    }

    static F zero() { return _mm256_setzero_ps(); }
    static F all(float x) { return _mm256_set1_ps(x); }
    static F load(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }  // a * b + c
    static F min(F a, F b) { return _mm256_min_ps(a, b); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F magnitude(F x) { return _mm256_andnot_ps(all(-0.0f), x); }
    static F with_sign(F x, F sign) { return _mm256_or_ps(x, _mm256_and_ps(all(-0.0f), sign)); }
    // x * 2^n, for whole n from -126 to 127
    static F scale(F x, F n) {
        __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    }
    // zeros from lane n on
    static F first(F x, int n) {
        __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)));
    }
    static __m128i rounded(F x) {  // to 16-bit numbers
        __m256i whole = _mm256_cvtps_epi32(x);
        return _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    }
    // a0 b0 a1 b1 ... of the first halves, and of the second ones
    static F zip_low(F a, F b) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20); }
    static F zip_high(F a, F b) { return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31); }
    static float sum(F x) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    static float largest(F x) {
        __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        s = _mm_max_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
    }
};

}  // namespace
