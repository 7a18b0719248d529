// ARM's NEON: vectors of four floats, and signed activations. The part that the instruction sets of ARM share.
//
// Activations are signed, from -128 to 127. The instruction for unsigned ones (`usdot`) came later, and Graviton 2 and
// Altra do not have it.

#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace {

struct Neon {
    static constexpr int lanes = 4;
    static constexpr int tile_rows = 6;
    static constexpr int tile_vectors = 4;
    static constexpr int lowest = -128;
    static constexpr int levels = 255;
    static constexpr int floats_per_lane = 1;
    static constexpr bool stores_four = false;
    static constexpr int rows_at_once = 1;

    using Floats = float32x4_t;
    using Accumulators = int32x4_t;
    using Quantised = std::int8_t;

    // Keeps the order of a tile's products: otherwise gcc 12 runs out of registers.
    template <class Vector>
    static Vector in_order(Vector sum) {
        asm volatile("" : "+w"(sum));
        return sum;
    }
    static Floats zero() { return vdupq_n_f32(0.0f); }
    static Floats broadcast(float x) { return vdupq_n_f32(x); }
    static Floats load(const float* p) { return vld1q_f32(p); }
    static void store(float* p, Floats x) { vst1q_f32(p, x); }
    static Floats add(Floats a, Floats b) { return vaddq_f32(a, b); }
    static Floats sub(Floats a, Floats b) { return vsubq_f32(a, b); }
    static Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
    static Floats div(Floats a, Floats b) { return vdivq_f32(a, b); }
    static Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
    static Floats min(Floats a, Floats b) { return vminq_f32(a, b); }
    static Floats max(Floats a, Floats b) { return vmaxq_f32(a, b); }
    static Floats round(Floats x) { return vrndnq_f32(x); }
    static Floats multiply_by_power(Floats x, Floats n) {
        int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
        return mul(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
    }
    static Floats keep_first(Floats x, int n) {
        const int32x4_t lane = {0, 1, 2, 3};
        return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vcltq_s32(lane, vdupq_n_s32(n))));
    }
    static Floats interleave_low(Floats a, Floats b) { return vzip1q_f32(a, b); }
    static Floats interleave_high(Floats a, Floats b) { return vzip2q_f32(a, b); }
    // the lower (0) or the upper (1) bf16 number of each lane
    template <int which>
    static Floats half(Floats pairs) {
        const uint32x4_t bits = vreinterpretq_u32_f32(pairs);
        return vreinterpretq_f32_u32(which ? vandq_u32(bits, vdupq_n_u32(0xffff0000)) : vshlq_n_u32(bits, 16));
    }
    static float sum_lanes(Floats x) {  // adds halves, like the other instruction sets; vaddvq_f32 adds neighbours
        float32x2_t s = vadd_f32(vget_low_f32(x), vget_high_f32(x));
        return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
    }
    static float max_lane(Floats x) { return vmaxvq_f32(x); }
    static void store_quantised(Quantised* p, Floats x) {
        int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(x));
        int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
        __builtin_memcpy(p, &bytes, 4);
    }

    static Accumulators zero_accumulators() { return vdupq_n_s32(0); }
    static Floats to_floats(Accumulators x) { return vcvtq_f32_s32(x); }
};

}  // namespace
