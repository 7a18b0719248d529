// The arithmetic, written once over the operations of an instruction set (`Isa`).
//
// Everything is computed row by row: a row's numbers come from the same operations in the same order wherever in a
// batch it stands. Sums of integer products are exact, so there the order is free.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace {

using F = Isa::F;
using I = Isa::I;
using Q = Isa::Q;
constexpr int lanes = Isa::lanes;
constexpr int panel = lanes * Isa::tile_vectors;  // columns of a tile

#define ALWAYS_INLINE inline __attribute__((always_inline))

// Calls f with 0, 1, ..., N - 1 as compile-time constants: what it indexes with them can stay in registers.
template <class Function, int... i>
ALWAYS_INLINE void unroll_(Function&& f, std::integer_sequence<int, i...>) {
    (f(std::integral_constant<int, i>{}), ...);
}
template <int N, class Function>
ALWAYS_INLINE void unroll(Function&& f) {
    unroll_(f, std::make_integer_sequence<int, N>{});
}

// Calls f with n as a compile-time constant, for n from 1 to N.
template <int N, class Function>
ALWAYS_INLINE void with_constant(int n, Function&& f) {
    if constexpr (N > 1) {
        if (n < N) return with_constant<N - 1>(n, f);
    }
    f(std::integral_constant<int, N>{});
}

// ---- element by element

ALWAYS_INLINE F exponential(F x) {
    x = Isa::min(Isa::max(x, Isa::all(-87.0f)), Isa::all(88.0f));
    const F log2e = Isa::all(1.44269504f);
    F n = Isa::round(Isa::mul(x, log2e));
    F f = Isa::fma(x, log2e, Isa::sub(Isa::zero(), n));  // from -0.5 to 0.5
    F p = Isa::all(1.54035304e-4f);                      // ln(2)^i / i!, highest first: 2^f to 2e-7
    for (float c : {1.33335581e-3f, 9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f})
        p = Isa::fma(p, f, Isa::all(c));
    return Isa::scale(p, n);
}

ALWAYS_INLINE F logistic(F x) {
    const F one = Isa::all(1.0f);
    return Isa::div(one, Isa::add(one, exponential(Isa::sub(Isa::zero(), x))));
}

// Abramowitz and Stegun 7.1.26: off by at most 1.5e-7.
ALWAYS_INLINE F error_function(F x) {
    F a = Isa::magnitude(x), one = Isa::all(1.0f);
    F t = Isa::div(one, Isa::fma(Isa::all(0.3275911f), a, one));
    F p = Isa::all(1.061405429f);
    for (float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = Isa::fma(p, t, Isa::all(c));
    F e = exponential(Isa::sub(Isa::zero(), Isa::mul(a, a)));
    return Isa::with_sign(Isa::sub(one, Isa::mul(Isa::mul(p, t), e)), x);
}

enum class Activation : int { none, relu, gelu, gelu_tanh, tanh };

// The activation of n numbers in place; ReLU is applied where they are made.
ALWAYS_INLINE void activate(Activation activation, float* x, int n) {
    switch (activation) {
        case Activation::none:
        case Activation::relu: return;
        case Activation::gelu:
            for (int i = 0; i < n; i += lanes) {
                F v = Isa::load(x + i);
                F phi = Isa::fma(error_function(Isa::mul(v, Isa::all(0.70710678f))), Isa::all(0.5f), Isa::all(0.5f));
                Isa::store(x + i, Isa::mul(v, phi));
            }
            return;
        case Activation::gelu_tanh:  // x (1 + tanh u) / 2 = x logistic(2 u)
            for (int i = 0; i < n; i += lanes) {
                F v = Isa::load(x + i);
                F cubic = Isa::fma(Isa::mul(v, v), Isa::all(0.044715f * 1.59576912f), Isa::all(1.59576912f));
                Isa::store(x + i, Isa::mul(v, logistic(Isa::mul(v, cubic))));
            }
            return;
        case Activation::tanh:
            for (int i = 0; i < n; i += lanes) {
                F twice = logistic(Isa::mul(Isa::load(x + i), Isa::all(2.0f)));
                Isa::store(x + i, Isa::fma(twice, Isa::all(2.0f), Isa::all(-1.0f)));
            }
    }
}

// ---- products in int8

// Rows of activations as small whole numbers: x is about (q - zero) * scale. Zero is one of them, exactly.
struct Quantised {
    Q* q;           // (rows, k)
    float* scale;     // (rows,)
    float* offset;    // (rows,): scale * zero
};

// A matrix (n, k) in int8 with a scale for each output; n is a multiple of lanes, k of 16.
//
// w holds panels of `panel` outputs (the last may be narrower); in a panel, for each group of inputs, the weights of
// each output for it: what one `dot` after the other reads.
struct Matrix {
    int n = 0, k = 0;
    std::int8_t* w = nullptr;
    float* scale = nullptr;
    float* bias = nullptr;
    float* sums = nullptr;  // scale * the sum of the output's weights: what each unit of `offset` adds too much
};

// What becomes of a product: out = activation(product + bias + gain * residual).
struct Finish {
    Activation activation = Activation::none;
    const float* residual = nullptr;  // (rows, n), may be out itself
    int residual_stride = 0;
    const float* gain = nullptr;  // (n,); none: 1
};

// Ranges of some rows first, then their numbers: a processor computes several ranges at a time, not one after the other.
inline void quantise(const float* x, int stride, int rows, int k, const Quantised& to) {
    constexpr int together = 8;
    for (int first = 0; first < rows; first += together) {
        const int end = first + together < rows ? first + together : rows;
        float inverse[together], zero[together];
        for (int row = first; row < end; row++) {
            const float* from = x + static_cast<std::size_t>(row) * stride;
            F low = Isa::zero(), high = Isa::zero();
            for (int i = 0; i < k; i += lanes) {
                low = Isa::min(low, Isa::load(from + i));
                high = Isa::max(high, Isa::load(from + i));
            }
            const float below = Isa::largest(Isa::sub(Isa::zero(), low)), range = below + Isa::largest(high);
            // In subnormal numbers the quotient would be infinite; nothing is lost by calling them zeros.
            inverse[row - first] = range > 1e-30f ? Isa::levels / range : 0.0f;
            zero[row - first] = __builtin_rintf(below * inverse[row - first]) + Isa::lowest;
            to.scale[row] = range / Isa::levels;
            to.offset[row] = to.scale[row] * zero[row - first];
        }
        for (int row = first; row < end; row++) {
            const float* from = x + static_cast<std::size_t>(row) * stride;
            const F factor = Isa::all(inverse[row - first]), shift = Isa::all(zero[row - first]);
            // A number may round to one less than `lowest`, or one more than the highest, which are cut where there is
            // no room for them.
            Q* q = to.q + static_cast<std::size_t>(row) * k;
            for (int i = 0; i < k; i += lanes) Isa::store_rounded(q + i, Isa::fma(Isa::load(from + i), factor, shift));
        }
    }
}

// R rows times C vectors of outputs, from `column` on; w is the panel's weights, `width` outputs wide.
template <int R, int C>
__attribute__((noinline)) void tile(const Quantised& x, int k, const Matrix& m, const std::int8_t* w, int column,
                                    float* out, int stride, const Finish& finish) {
    I sum[R][C];
    unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = Isa::none(); }); });
    const Q* q = x.q;
    constexpr int group = Isa::group;
    // Bytes ahead to fetch, into the nearest cache and into the next: in short batches each weight comes from afar, and once.
    constexpr int near = 2048, far = 32768;
    for (int i = 0; i < k; i += group, w += group * C * lanes) {
        decltype(Isa::weights(w)) weights[C];
        unroll<C>([&](auto c) {
            weights[c] = Isa::weights(w + group * c * lanes);
            __builtin_prefetch(w + near + group * c * lanes);
            __builtin_prefetch(w + far + group * c * lanes, 0, 2);
        });
        unroll<R>([&](auto r) {
            auto same = Isa::activations(q + static_cast<std::size_t>(r) * k + i);
            unroll<C>([&](auto c) { sum[r][c] = Isa::dot(sum[r][c], same, weights[c]); });
        });
    }
    const F floor = Isa::all(finish.activation == Activation::relu ? 0.0f : -std::numeric_limits<float>::infinity());
    unroll<C>([&](auto c) {
        const int n = column + c * lanes;
        const F scale = Isa::load(m.scale + n), bias = Isa::load(m.bias + n), sums = Isa::load(m.sums + n);
        const F gain = finish.gain ? Isa::load(finish.gain + n) : Isa::all(1.0f);
        unroll<R>([&](auto r) {
            F v = Isa::fma(Isa::all(-x.offset[r]), sums, bias);
            v = Isa::fma(Isa::to_float(sum[r][c]), Isa::mul(scale, Isa::all(x.scale[r])), v);
            if (finish.residual) v = Isa::fma(Isa::load(finish.residual + static_cast<std::size_t>(r) * finish.residual_stride + n), gain, v);
            Isa::store(out + static_cast<std::size_t>(r) * stride + n, Isa::max(v, floor));
        });
    });
    if (finish.activation > Activation::relu)
        for (int r = 0; r < R; r++) activate(finish.activation, out + static_cast<std::size_t>(r) * stride + column, C * lanes);
}

// Rows of x times m, into out (rows, stride). A panel of weights stays in the nearest cache while all rows go by.
inline void multiply(const Quantised& x, int rows, const Matrix& m, float* out, int stride, const Finish& finish = {}) {
    for (int column = 0; column < m.n; column += panel) {
        const std::int8_t* w = m.w + static_cast<std::size_t>(column) * m.k;
        const int vectors = (m.n - column < panel ? m.n - column : panel) / lanes;
        for (int row = 0; row < rows; row += Isa::tile_rows) {
            const std::size_t at = row;
            const Quantised part{x.q + at * m.k, x.scale + at, x.offset + at};
            Finish ending = finish;
            if (finish.residual) ending.residual += at * finish.residual_stride;
            with_constant<Isa::tile_rows>(rows - row, [&](auto r) {
                with_constant<Isa::tile_vectors>(vectors, [&](auto c) {
                    tile<r, c>(part, m.k, m, w, column, out + at * stride, stride, ending);
                });
            });
        }
    }
}

// ---- in fp32, or in pairs of bf16 that take the place of a number in fp32

template <class A = Isa>
ALWAYS_INLINE F multiply_add(F a, F b, F c) {
    if constexpr (A::paired == 2)
        return A::fma_pairs(a, b, c);
    else
        return A::fma(a, b, c);
}

// (R, k) times (k, C vectors) into out.
template <int R, int C>
__attribute__((noinline)) void tile_f32(const float* a, int a_stride, const float* b, int b_stride, int k, float* out,
                                        int stride) {
    F sum[R][C];
    unroll<R>([&](auto r) { unroll<C>([&](auto c) { sum[r][c] = Isa::zero(); }); });
    for (int i = 0; i < k; i++, b += b_stride) {
        F right[C];
        unroll<C>([&](auto c) { right[c] = Isa::load(b + c * lanes); });
        unroll<R>([&](auto r) {
            F left = Isa::all(a[static_cast<std::size_t>(r) * a_stride + i]);
            unroll<C>([&](auto c) { sum[r][c] = multiply_add(left, right[c], sum[r][c]); });
        });
    }
    unroll<R>([&](auto r) {
        unroll<C>([&](auto c) { Isa::store(out + static_cast<std::size_t>(r) * stride + c * lanes, sum[r][c]); });
    });
}

// (rows, k) times (k, n) into out, for at most `tile_rows` rows and n a multiple of lanes.
inline void multiply_f32(const float* a, int a_stride, int rows, const float* b, int b_stride, int k, int n, float* out,
                         int stride) {
    with_constant<Isa::tile_rows>(rows, [&](auto r) {
        for (int column = 0; column < n; column += panel)
            with_constant<Isa::tile_vectors>((n - column) / lanes, [&](auto c) {
                tile_f32<r, c>(a, a_stride, b + column, b_stride, k, out + column, stride);
            });
    });
}

// exp(x - max x) of n numbers in place, and zeros up to the next multiple of lanes. Returns 1 / their sum.
inline float softmax(float* x, int n) {
    F high = Isa::all(-std::numeric_limits<float>::infinity());
    for (int i = n; i % lanes; i++) x[i] = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < n; i += lanes) high = Isa::max(high, Isa::load(x + i));
    const F shift = Isa::all(Isa::largest(high));
    F sum = Isa::zero();
    for (int i = 0; i < n; i += lanes) {
        F e = Isa::first(exponential(Isa::sub(Isa::load(x + i), shift)), n - i);
        sum = Isa::add(sum, e);
        Isa::store(x + i, e);
    }
    return 1.0f / Isa::sum(sum);
}

inline int rounded_up(int n, int to) { return (n + to - 1) / to * to; }

// (rows, columns) as (columns, rows rounded up to lanes), with zeros added; columns is a multiple of lanes, too.
inline void transpose(const float* from, int from_stride, int rows, int columns, float* to, int to_stride) {
    for (int row = 0; row < rows; row += lanes)
        for (int column = 0; column < columns; column += lanes) {
            // To interleave the first half of the vectors with the second half turns the positions of all numbers, as
            // bits, by one: after log2(lanes) times, a number's lane says its row, and its vector says its column.
            F x[lanes], y[lanes];
            unroll<lanes>([&](auto i) {
                x[i] = row + i < rows ? Isa::load(from + static_cast<std::size_t>(row + i) * from_stride + column) : Isa::zero();
            });
            for (int left = lanes; left > 1; left /= 2) {
                unroll<lanes / 2>([&](auto i) {
                    y[2 * i] = Isa::zip_low(x[i], x[i + lanes / 2]);
                    y[2 * i + 1] = Isa::zip_high(x[i], x[i + lanes / 2]);
                });
                unroll<lanes>([&](auto i) { x[i] = y[i]; });
            }
            unroll<lanes>([&](auto i) { Isa::store(to + static_cast<std::size_t>(column + i) * to_stride + row, x[i]); });
        }
}

// How many lanes these numbers take, in whole vectors.
inline int paired(int n) { return rounded_up(n, Isa::paired * lanes) / Isa::paired; }

struct Rows {
    const float* x;
    int stride;  // between two of them
};

// What the products of attention take for n numbers of each row: these, or pairs of those that are `lanes` apart.
template <class A = Isa>
Rows pair_columns(Rows from, int rows, int n, float* room) {
    if constexpr (A::paired == 1) return from;
    else {
        const int width = paired(n);
        for (int row = 0; row < rows; row++, from.x += from.stride)
            for (int i = 0; i < n; i += 2 * lanes) {
                const F first = Isa::load(from.x + i), second = i + lanes < n ? Isa::load(from.x + i + lanes) : Isa::zero();
                Isa::store(room + static_cast<std::size_t>(row) * width + i / 2, A::pair(first, second));
            }
        return {room, width};
    }
}

// The same of the rows of each column.
template <class A = Isa>
Rows pair_rows(Rows from, int rows, int n, float* room) {
    if constexpr (A::paired == 1) return from;
    else {
        const auto load = [&](int row, int i) {
            return row < rows ? Isa::load(from.x + static_cast<std::size_t>(row) * from.stride + i) : Isa::zero();
        };
        float* to = room;
        for (int row = 0; row < rows; row += 2 * lanes)
            for (int i = row; i < row + lanes; i++, to += n)
                for (int d = 0; d < n; d += lanes) Isa::store(to + d, A::pair(load(i, d), load(i + lanes, d)));
        return {room, n};
    }
}

// Where `attend` keeps what, in one stretch of `size` numbers: transposed keys first; pairs only where there are any.
struct Room {
    std::size_t scores, query, key, value, size;
    Room(int keys, int depth) {
        const std::size_t width = paired(depth), all = rounded_up(keys, lanes), pairs = Isa::paired > 1;
        scores = width * all;
        query = scores + Isa::tile_rows * all;
        key = query + pairs * Isa::tile_rows * width;
        value = key + pairs * width * all;
        size = value + pairs * paired(keys) * depth;
    }
};

// One row's attention. q (queries, .) is scaled already; k and v are (keys, .), with heads side by side. `memory` has room
// for what `Room` says.
inline void attend(const float* q, int q_stride, int queries, const float* k, const float* v, int kv_stride, int keys,
                   int heads, int depth, float* out, int stride, float* memory) {
    const int width = paired(depth), all = rounded_up(keys, lanes), reads = Isa::paired == 1 ? keys : paired(keys);
    const Room room(keys, depth);
    float *transposed = memory, *scores = memory + room.scores;
    for (int head = 0; head < heads; head++) {
        const int at = head * depth;
        const Rows key = pair_columns({k + at, kv_stride}, keys, depth, memory + room.key);
        const Rows value = pair_rows({v + at, kv_stride}, keys, depth, memory + room.value);
        transpose(key.x, key.stride, keys, width, transposed, all);
        for (int i = 0; i < queries; i += Isa::tile_rows) {
            const int rows = queries - i < Isa::tile_rows ? queries - i : Isa::tile_rows;
            float* to = out + static_cast<std::size_t>(i) * stride + at;
            const Rows query = pair_columns({q + static_cast<std::size_t>(i) * q_stride + at, q_stride}, rows, depth, memory + room.query);
            multiply_f32(query.x, query.stride, rows, transposed, all, width, all, scores, all);
            float inverse[Isa::tile_rows];
            for (int r = 0; r < rows; r++) inverse[r] = softmax(scores + static_cast<std::size_t>(r) * all, keys);
            const Rows shares = pair_columns({scores, all}, rows, all, scores);  // whose pairs lie before what is read
            multiply_f32(shares.x, shares.stride, rows, value.x, value.stride, reads, depth, to, stride);
            for (int r = 0; r < rows; r++)
                for (int d = 0; d < depth; d += lanes) {
                    float* p = to + static_cast<std::size_t>(r) * stride + d;
                    Isa::store(p, Isa::mul(Isa::load(p), Isa::all(inverse[r])));
                }
        }
    }
}

// LayerNorm of n numbers in place.
inline void normalise(float* x, int n, const float* weight, const float* bias, float epsilon) {
    F total = Isa::zero();
    for (int i = 0; i < n; i += lanes) total = Isa::add(total, Isa::load(x + i));
    const F mean = Isa::all(Isa::sum(total) / static_cast<float>(n));
    F squares = Isa::zero();
    for (int i = 0; i < n; i += lanes) {
        F d = Isa::sub(Isa::load(x + i), mean);
        squares = Isa::fma(d, d, squares);
    }
    const F inverse = Isa::all(1.0f / __builtin_sqrtf(Isa::sum(squares) / static_cast<float>(n) + epsilon));
    for (int i = 0; i < n; i += lanes) {
        F d = Isa::mul(Isa::sub(Isa::load(x + i), mean), inverse);
        Isa::store(x + i, Isa::fma(d, Isa::load(weight + i), Isa::load(bias + i)));
    }
}

// The logarithm of the sum of the exponentials of n numbers, which have room up to the next multiple of lanes. It is not a
// number where one of them is not finite.
inline float log_total(float* x, int n) {
    for (int i = n; i % lanes; i++) x[i] = std::numeric_limits<float>::lowest();
    F high = Isa::load(x), wrong = Isa::zero();
    for (int i = 0; i < n; i += lanes) {
        high = Isa::max(high, Isa::load(x + i));
        wrong = Isa::fma(Isa::load(x + i), Isa::zero(), wrong);  // 0 times infinity, or what is no number, is none
    }
    const float largest = Isa::largest(high);
    F sum = Isa::zero();
    for (int i = 0; i < n; i += lanes)
        sum = Isa::add(sum, Isa::first(exponential(Isa::sub(Isa::load(x + i), Isa::all(largest))), n - i));
    return static_cast<float>(largest + std::log(static_cast<double>(Isa::sum(sum)))) + Isa::sum(wrong);
}

// What of n numbers somebody wants who wants the `most` largest, of all or of the `count` that stand at `among`: into
// out, the logarithm of all their total, the numbers, largest first, and where they stand. Of equal ones the first to
// stand there come first. Returns the end of what was written.
inline float* rank(float* x, int n, int most, const std::int64_t* among, int count, float* out) {
    constexpr int together = 8 * lanes;
    const int room = count ? count : n;
    most = most < room ? most : room;
    float *best = out + 1, *places = best + most;
    *out = log_total(x, n);
    int kept = 0;
    const auto offer = [&](float number, std::int64_t place) {
        if (kept < most)
            kept++;
        else if (!(number > best[kept - 1]))
            return;
        int i = kept - 1;
        for (; i > 0 && number > best[i - 1]; i--) {
            best[i] = best[i - 1];
            places[i] = places[i - 1];
        }
        best[i] = number;
        places[i] = static_cast<float>(place);
    };
    for (int i = 0; i < count; i++) offer(x[among[i]], among[i]);
    for (int i = 0; i < n && !count; i += together) {
        const int end = n - i < together ? n : i + together;
        F high = Isa::load(x + i);
        for (int j = i + lanes; j < end; j += lanes) high = Isa::max(high, Isa::load(x + j));
        if (kept == most && !(Isa::largest(high) > best[most - 1])) continue;  // soon so, nearly everywhere
        for (int j = i; j < end; j++) offer(x[j], j);
    }
    return places + most;
}

inline float inner(const float* a, const float* b, int n) {
    F sum = Isa::zero();
    for (int i = 0; i < n; i += lanes) sum = Isa::fma(Isa::load(a + i), Isa::load(b + i), sum);
    return Isa::sum(sum);
}

}  // namespace
