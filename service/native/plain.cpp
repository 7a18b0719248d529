// No instruction set: vectors are arrays, in the shape of `SWIFTLET_LANES` lanes, with activations from `SWIFTLET_LOWEST`
// on in `SWIFTLET_LEVELS` steps, and `SWIFTLET_PAIRED` numbers in a lane of what attention multiplies. Slow, and never
// chosen to serve; the tests build it, in the shape of each instruction set, to check what the others share and where they
// should agree.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifndef SWIFTLET_LANES
#define SWIFTLET_LANES 8
#define SWIFTLET_LOWEST 0
#define SWIFTLET_LEVELS 1023
#define SWIFTLET_PAIRED 1
#endif

namespace {

struct Isa {
    static constexpr const char* name = "plain";
    static constexpr int lanes = SWIFTLET_LANES;
    static constexpr int tile_rows = 3;  // other tiles than elsewhere: what they are changes no number
    static constexpr int tile_vectors = 2;
    static constexpr int lowest = SWIFTLET_LOWEST;
    static constexpr int levels = SWIFTLET_LEVELS;
    static constexpr int paired = SWIFTLET_PAIRED;

    using Byte = std::conditional_t<(lowest < 0), std::int8_t, std::uint8_t>;
    using Q = std::conditional_t<(levels > 255), std::int16_t, Byte>;

    static constexpr int group = 4 / sizeof(Q);

    struct F {
        float x[lanes];
    };
    struct I {
        std::int32_t x[lanes];
    };

    static bool supported() { return true; }

    template <class Op>
    static F each(Op op) {
        F r;
        for (int i = 0; i < lanes; i++) r.x[i] = op(i);
        return r;
    }
    static F zero() { return all(0.0f); }
    static F all(float x) {
        return each([=](int) { return x; });
    }
    static F load(const float* p) {
        return each([=](int i) { return p[i]; });
    }
    static void store(float* p, F x) { std::copy(x.x, x.x + lanes, p); }
    static F add(F a, F b) {
        return each([&](int i) { return a.x[i] + b.x[i]; });
    }
    static F sub(F a, F b) {
        return each([&](int i) { return a.x[i] - b.x[i]; });
    }
    static F mul(F a, F b) {
        return each([&](int i) { return a.x[i] * b.x[i]; });
    }
    static F div(F a, F b) {
        return each([&](int i) { return a.x[i] / b.x[i]; });
    }
    static F fma(F a, F b, F c) {
        return each([&](int i) { return std::fma(a.x[i], b.x[i], c.x[i]); });
    }
    static F min(F a, F b) {
        return each([&](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; });
    }
    static F max(F a, F b) {
        return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
    }
    static F round(F x) {
        return each([&](int i) { return std::nearbyint(x.x[i]); });
    }
    static F magnitude(F x) {
        return each([&](int i) { return std::fabs(x.x[i]); });
    }
    static F with_sign(F x, F sign) {
        return each([&](int i) { return std::copysign(x.x[i], sign.x[i]); });
    }
    static F scale(F x, F n) {
        return each([&](int i) { return std::ldexp(x.x[i], static_cast<int>(n.x[i])); });
    }
    static F first(F x, int n) {
        return each([&](int i) { return i < n ? x.x[i] : 0.0f; });
    }
    static F zip_low(F a, F b) {
        return each([&](int i) { return (i % 2 ? b : a).x[i / 2]; });
    }
    static F zip_high(F a, F b) {
        return each([&](int i) { return (i % 2 ? b : a).x[(lanes + i) / 2]; });
    }
    static float half(float x, int shift) {  // of a pair
        std::uint32_t bits;
        std::memcpy(&bits, &x, 4);
        bits = bits << shift & 0xffff0000;
        std::memcpy(&x, &bits, 4);
        return x;
    }
    static F pair(F a, F b) {
        return each([&](int i) {
            std::uint32_t low, high;
            std::memcpy(&low, &a.x[i], 4);
            std::memcpy(&high, &b.x[i], 4);
            for (auto* bits : {&low, &high}) *bits += 0x7fff + (*bits >> 16 & 1);  // to the nearest, and then to even
            const std::uint32_t both = low >> 16 | (high & 0xffff0000);
            float lane;
            std::memcpy(&lane, &both, 4);
            return lane;
        });
    }
    static F fma_pairs(F a, F b, F c) {
        return each([&](int i) {
            const float high = std::fma(half(a.x[i], 0), half(b.x[i], 0), c.x[i]);
            return std::fma(half(a.x[i], 16), half(b.x[i], 16), high);
        });
    }
    static float sum(F x) {
        for (int half = lanes / 2; half; half /= 2)  // in the order of the others, so that all agree to the bit
            for (int i = 0; i < half; i++) x.x[i] += x.x[i + half];
        return x.x[0];
    }
    static float largest(F x) { return *std::max_element(x.x, x.x + lanes); }
    static void store_rounded(Q* p, F x) {
        constexpr float most = std::numeric_limits<Q>::max(), least = std::numeric_limits<Q>::min();
        for (int i = 0; i < lanes; i++) {
            float v = std::nearbyint(x.x[i]);
            p[i] = static_cast<Q>(v > least ? (v < most ? v : most) : least);  // least, too, for what is no number
        }
    }

    static I none() { return I{}; }
    static I activations(const Q* p) {
        I r;
        for (auto& v : r.x) __builtin_memcpy(&v, p, 4);
        return r;
    }
    struct Weights {
        std::int8_t x[lanes * group];
    };
    static Weights weights(const std::int8_t* p) {
        Weights r;
        __builtin_memcpy(&r, p, sizeof r);
        return r;
    }
    static I dot(I sum, I activations, const Weights& weights) {
        Q a[lanes * group];
        __builtin_memcpy(a, &activations, sizeof a);
        for (int i = 0; i < lanes; i++)
            for (int j = 0; j < group; j++) sum.x[i] += a[group * i + j] * weights.x[group * i + j];
        return sum;
    }
    static F to_float(I x) {
        return each([&](int i) { return static_cast<float>(x.x[i]); });
    }
};

}  // namespace

#include "api.h"
