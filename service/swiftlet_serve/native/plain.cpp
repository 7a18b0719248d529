// No instruction set: the reference kernels of the tests, with arrays as vectors. They are slow and never serve.
//
// The tests build them in the shape of each instruction set: `SWIFTLET_LANES` lanes, quantised activations from
// `SWIFTLET_LOWEST` to `SWIFTLET_LOWEST` + `SWIFTLET_LEVELS`, `SWIFTLET_FLOATS_PER_LANE` numbers per lane in attention, and
// tiles in software if `SWIFTLET_TILES` is 1.

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
#define SWIFTLET_FLOATS_PER_LANE 1
#define SWIFTLET_TILES 0
#endif

#if SWIFTLET_TILES
#include "tile_model.h"
using Tiles = TileRegisters;
#else
#include "no_tiles.h"
using Tiles = NoTiles;
#endif

namespace {

struct Isa : Tiles {
    static constexpr const char* name = "plain";
    static constexpr int lanes = SWIFTLET_LANES;
    static constexpr int tile_rows = 3;  // other tiles than the instruction sets': their size changes no result
    static constexpr int tile_vectors = tiles ? 1 : 2;
    static constexpr int lowest = SWIFTLET_LOWEST;
    static constexpr int levels = SWIFTLET_LEVELS;
    static constexpr int floats_per_lane = SWIFTLET_FLOATS_PER_LANE;
    static constexpr bool stores_four = false;
    static constexpr int rows_at_once = 1;

    using Byte = std::conditional_t<(lowest < 0), std::int8_t, std::uint8_t>;
    using Quantised = std::conditional_t<(levels > 255), std::int16_t, Byte>;

    static constexpr int group = 4 / sizeof(Quantised);

    struct Floats {
        float x[lanes];
    };
    struct Accumulators {
        std::int32_t x[lanes];
    };

    static bool supported() { return true; }

    template <class Op>
    static Floats each(Op op) {
        Floats r;
        for (int i = 0; i < lanes; i++) r.x[i] = op(i);
        return r;
    }
    template <class Vector>
    static Vector in_order(Vector sum) {
        return sum;
    }
    static Floats zero() { return broadcast(0.0f); }
    static Floats broadcast(float x) {
        return each([=](int) { return x; });
    }
    static Floats load(const float* p) {
        return each([=](int i) { return p[i]; });
    }
    static void store(float* p, Floats x) { std::copy(x.x, x.x + lanes, p); }
    static Floats add(Floats a, Floats b) {
        return each([&](int i) { return a.x[i] + b.x[i]; });
    }
    static Floats sub(Floats a, Floats b) {
        return each([&](int i) { return a.x[i] - b.x[i]; });
    }
    static Floats mul(Floats a, Floats b) {
        return each([&](int i) { return a.x[i] * b.x[i]; });
    }
    static Floats div(Floats a, Floats b) {
        return each([&](int i) { return a.x[i] / b.x[i]; });
    }
    static Floats fma(Floats a, Floats b, Floats c) {
        return each([&](int i) { return std::fma(a.x[i], b.x[i], c.x[i]); });
    }
    static Floats min(Floats a, Floats b) {
        return each([&](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; });
    }
    static Floats max(Floats a, Floats b) {
        return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
    }
    static Floats round(Floats x) {
        return each([&](int i) { return std::nearbyint(x.x[i]); });
    }
    static Floats multiply_by_power(Floats x, Floats n) {
        return each([&](int i) { return std::ldexp(x.x[i], std::isnan(n.x[i]) ? 0 : static_cast<int>(n.x[i])); });
    }
    static Floats keep_first(Floats x, int n) {
        return each([&](int i) { return i < n ? x.x[i] : 0.0f; });
    }
    static Floats interleave_low(Floats a, Floats b) {
        return each([&](int i) { return (i % 2 ? b : a).x[i / 2]; });
    }
    static Floats interleave_high(Floats a, Floats b) {
        return each([&](int i) { return (i % 2 ? b : a).x[(lanes + i) / 2]; });
    }
    // Returns the lower (0) or the upper (1) number of each pair.
    template <int which>
    static Floats half(Floats pairs) {
        return each([&](int i) {
            std::uint32_t bits;
            std::memcpy(&bits, &pairs.x[i], 4);
            bits = which ? bits & 0xffff0000 : bits << 16;
            float x;
            std::memcpy(&x, &bits, 4);
            return x;
        });
    }
    static Floats pair(Floats a, Floats b) {
        return each([&](int i) {
            std::uint32_t low, high;
            std::memcpy(&low, &a.x[i], 4);
            std::memcpy(&high, &b.x[i], 4);
            for (auto* bits : {&low, &high}) *bits += 0x7fff + (*bits >> 16 & 1);  // to nearest, ties to even
            const std::uint32_t both = low >> 16 | (high & 0xffff0000);
            float lane;
            std::memcpy(&lane, &both, 4);
            return lane;
        });
    }
    static Floats fma_pairs(Floats a, Floats b, Floats c) {
        return fma(half<0>(a), half<0>(b), fma(half<1>(a), half<1>(b), c));
    }
    static Floats pair_neighbours(Floats a, Floats b) {
        Floats even, odd;
        for (int i = 0; i < lanes; i++) {
            const Floats& from = i < lanes / 2 ? a : b;
            even.x[i] = from.x[2 * i % lanes], odd.x[i] = from.x[2 * i % lanes + 1];
        }
        return pair(even, odd);
    }
    static float sum_lanes(Floats x) {
        for (int half = lanes / 2; half; half /= 2)  // in the order of the instruction sets, so that all agree to the bit
            for (int i = 0; i < half; i++) x.x[i] += x.x[i + half];
        return x.x[0];
    }
    static float max_lane(Floats x) { return *std::max_element(x.x, x.x + lanes); }
    static void store_quantised(Quantised* p, Floats x) {
        constexpr float highest = std::numeric_limits<Quantised>::max(), least = std::numeric_limits<Quantised>::min();
        for (int i = 0; i < lanes; i++) {
            float v = std::nearbyint(x.x[i]);
            p[i] = static_cast<Quantised>(v > least ? (v < highest ? v : highest) : least);  // NaN becomes the least
        }
    }

    static Accumulators zero_accumulators() { return Accumulators{}; }
    static Accumulators broadcast_group(const Quantised* p) {
        Accumulators r;
        for (auto& v : r.x) __builtin_memcpy(&v, p, 4);
        return r;
    }
    struct Weights {
        std::int8_t x[lanes * group];
    };
    static Weights load_weights(const std::int8_t* p) {
        Weights r;
        __builtin_memcpy(&r, p, sizeof r);
        return r;
    }
    static Accumulators dot(Accumulators sum, Accumulators activations, const Weights& weights) {
        Quantised a[lanes * group];
        __builtin_memcpy(a, &activations, sizeof a);
        for (int i = 0; i < lanes; i++)
            for (int j = 0; j < group; j++) sum.x[i] += a[group * i + j] * weights.x[group * i + j];
        return sum;
    }
    static Accumulators load_sums(const std::int32_t* p) {
        Accumulators r;
        std::copy(p, p + lanes, r.x);
        return r;
    }
    static Floats to_floats(Accumulators x) {
        return each([&](int i) { return static_cast<float>(x.x[i]); });
    }
};

}  // namespace

#include "api.h"
