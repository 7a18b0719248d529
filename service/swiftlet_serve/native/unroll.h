// Loops that are unrolled at compile time.

#pragma once

#include <utility>

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace {

// Calls f with 0, 1, ..., N - 1 as compile-time constants, so that arrays indexed with them can stay in registers.
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

}  // namespace
