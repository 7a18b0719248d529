// ARM's NEON with the dot product of ARMv8.2 (`sdot`): four products of signed bytes, added in 32 bits.
//
// Activations are signed here, from -128 to 127: an instruction for unsigned ones (`usdot`) came later, and not to
// Graviton 2 and Altra.

#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include <cstdint>

namespace {

struct Isa {
    static constexpr const char* name = "neon";
    static constexpr int lanes = 4;
    static constexpr int tile_rows = 6;
    static constexpr int tile_vectors = 4;
    static constexpr int lowest = -128;
    static constexpr int levels = 255;
    static constexpr int group = 4;
    static constexpr int paired = 1;

    using F = float32x4_t;
    using I = int32x4_t;
    using Q = std::int8_t;

    static bool supported() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }

    static F zero() { return vdupq_n_f32(0.0f); }
    static F all(float x) { return vdupq_n_f32(x); }
    static F load(const float* p) { return vld1q_f32(p); }
    static void store(float* p, F x) { vst1q_f32(p, x); }
    static F add(F a, F b) { return vaddq_f32(a, b); }
    static F sub(F a, F b) { return vsubq_f32(a, b); }
    static F mul(F a, F b) { return vmulq_f32(a, b); }
    static F div(F a, F b) { return vdivq_f32(a, b); }
    static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
    static F min(F a, F b) { return vminq_f32(a, b); }
    static F max(F a, F b) { return vmaxq_f32(a, b); }
    static F round(F x) { return vrndnq_f32(x); }
    static F magnitude(F x) { return vabsq_f32(x); }
    static F with_sign(F x, F sign) { return vbslq_f32(vdupq_n_u32(0x80000000), sign, x); }
    static F scale(F x, F n) {
        int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
        return mul(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
    }
    static F first(F x, int n) {
        const int32x4_t lane = {0, 1, 2, 3};
        return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vcltq_s32(lane, vdupq_n_s32(n))));
    }
    static F zip_low(F a, F b) { return vzip1q_f32(a, b); }
    static F zip_high(F a, F b) { return vzip2q_f32(a, b); }
    static float sum(F x) {  // halves first, as elsewhere; vaddvq_f32 adds neighbours
        float32x2_t s = vadd_f32(vget_low_f32(x), vget_high_f32(x));
        return vget_lane_f32(s, 0) + vget_lane_f32(s, 1);
    }
    static float largest(F x) { return vmaxvq_f32(x); }
    static void store_rounded(Q* p, F x) {
        int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(x));
        int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
        __builtin_memcpy(p, &bytes, 4);
    }

    static I none() { return vdupq_n_s32(0); }
    static int8x16_t activations(const Q* p) {
        std::int32_t word;
        __builtin_memcpy(&word, p, 4);
        return vreinterpretq_s8_s32(vdupq_n_s32(word));
    }
    static int8x16_t weights(const std::int8_t* p) { return vld1q_s8(p); }
    static I dot(I sum, int8x16_t activations, int8x16_t weights) {
        sum = vdotq_s32(sum, activations, weights);
        asm volatile("" : "+w"(sum));  // keeps the order of a tile's products, and gcc 12 from running out of registers
        return sum;
    }
    static F to_float(I x) { return vcvtq_f32_s32(x); }
};

}  // namespace

#include "api.h"
