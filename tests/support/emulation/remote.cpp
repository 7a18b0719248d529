// The kernels of another machine as a program, which an emulator runs.
//
// A call comes on stdin: a name, and arguments that are integers, floating-point numbers or byte arrays. The result goes
// to stdout, followed by every array as the call left it. All numbers are little-endian.

#include KERNELS  // the file of an instruction set

#include <cstdio>
#include <functional>
#include <map>
#include <type_traits>

namespace {

void read(void* to, std::size_t size) {
    if (size && std::fread(to, size, 1, stdin) != 1) std::exit(0);  // the caller has closed the pipe
}

template <class T>
T read() {
    T value;
    read(&value, sizeof value);
    return value;
}

template <class Bytes>
Bytes read_bytes() {
    Bytes bytes(read<std::uint64_t>(), '\0');
    read(bytes.data(), bytes.size());
    return bytes;
}

void write(const void* from, std::uint64_t size) {
    std::fwrite(&size, sizeof size, 1, stdout);
    std::fwrite(from, 1, size, stdout);
}

struct Argument {
    char kind = read<char>();
    std::int64_t whole = kind == 'i' ? read<std::int64_t>() : 0;
    double real = kind == 'f' ? read<double>() : 0;
    std::vector<char> array = kind == 'a' ? read_bytes<std::vector<char>>() : std::vector<char>();

    template <class T>
    operator T() {
        if constexpr (std::is_floating_point_v<T>)
            return static_cast<T>(real);
        else if constexpr (std::is_pointer_v<T>)  // an integer is a pointer of this process
            return kind == 'a' ? reinterpret_cast<T>(array.data()) : reinterpret_cast<T>(whole);
        else
            return static_cast<T>(whole);
    }
};

template <class R, class... P, std::size_t... i>
void call(R (*function)(P...), std::vector<Argument>& arguments, std::index_sequence<i...>) {
    if constexpr (std::is_same_v<R, const char*>) {
        const char* text = function(arguments[i]...);
        write(text, std::strlen(text));
    } else {
        std::int64_t result = 0;
        if constexpr (std::is_void_v<R>)
            function(arguments[i]...);
        else
            result = (std::int64_t)function(arguments[i]...);
        write(&result, sizeof result);
    }
}

// Runs a batch from several threads at once, while the number of cores changes, so that helpers join calls and leave them.
// Returns the number of runs whose outputs differ from those that were computed first, on one core.
int stress(const Model* model, std::int64_t sequences, std::int64_t tokens, std::int64_t reads, const std::int64_t* arrays,
           std::int64_t outputs, int callers, int rounds, int seed, std::int64_t* all_helped_ns) {
    std::vector<float> expected(outputs);
    std::int64_t helped = 0;
    swiftlet_set_cores(1);
    if (swiftlet_run(model, sequences, tokens, reads, 0, arrays, nullptr, expected.data(), &helped)) return -1;
    std::atomic<int> wrong{0};
    std::atomic<std::int64_t> total{0};
    std::vector<std::thread> threads;
    for (int caller = 0; caller < callers; caller++)
        threads.emplace_back([&, draw = static_cast<unsigned>(seed + caller)]() mutable {
            std::vector<float> out(outputs);
            for (int round = 0; round < rounds; round++) {
                std::int64_t helped_ns = 0;
                draw = draw * 1103515245u + 12345u;
                swiftlet_set_cores(1 + (draw >> 16) % 8);
                const int status = swiftlet_run(model, sequences, tokens, reads, 0, arrays, nullptr, out.data(), &helped_ns);
                if (status || std::memcmp(out.data(), expected.data(), outputs * sizeof(float))) wrong++;
                total += helped_ns;
            }
        });
    for (std::thread& thread : threads) thread.join();
    *all_helped_ns = total;
    swiftlet_set_cores(8);
    if (swiftlet_idle_cores() != 8) wrong++;  // a helper has not given its core back
    swiftlet_set_cores(1);
    return wrong;
}

using Invoke = std::function<void(std::vector<Argument>&)>;

template <class R, class... P>
Invoke callable(R (*function)(P...)) {
    return [=](std::vector<Argument>& arguments) {
        if (arguments.size() != sizeof...(P)) std::abort();
        call(function, arguments, std::index_sequence_for<P...>());
    };
}

const std::map<std::string, Invoke> calls = {
    {"swiftlet_kernel", callable(swiftlet_kernel)},
    {"swiftlet_supported", callable(swiftlet_supported)},
    {"swiftlet_lanes", callable(swiftlet_lanes)},
    {"swiftlet_lowest", callable(swiftlet_lowest)},
    {"swiftlet_levels", callable(swiftlet_levels)},
    {"swiftlet_floats_per_lane", callable(swiftlet_floats_per_lane)},
    {"swiftlet_tiles", callable(swiftlet_tiles)},
    {"swiftlet_wrong_sums", callable(swiftlet_wrong_sums)},
    {"swiftlet_max_inputs", callable(swiftlet_max_inputs)},
    {"swiftlet_create", callable(swiftlet_create)},
    {"swiftlet_add_product", callable(swiftlet_add_product)},
    {"swiftlet_set_adapters", callable(swiftlet_set_adapters)},
    {"swiftlet_add_delta", callable(swiftlet_add_delta)},
    {"swiftlet_add_vector", callable(swiftlet_add_vector)},
    {"swiftlet_add_words", callable(swiftlet_add_words)},
    {"swiftlet_share_words", callable(swiftlet_share_words)},
    {"swiftlet_set_cores", callable(swiftlet_set_cores)},
    {"swiftlet_set_nodes", callable(swiftlet_set_nodes)},
    {"swiftlet_finish", callable(swiftlet_finish)},
    {"swiftlet_outputs", callable(swiftlet_outputs)},
    {"swiftlet_model_bytes", callable(swiftlet_model_bytes)},
    {"swiftlet_run", callable(swiftlet_run)},
    {"stress", callable(stress)},
    {"swiftlet_destroy", callable(swiftlet_destroy)},
    {"swiftlet_multiply", callable(swiftlet_multiply)},
    {"swiftlet_attend", callable(swiftlet_attend)},
    {"swiftlet_top_k", callable(swiftlet_top_k)},
    {"swiftlet_layer_norm", callable(swiftlet_layer_norm)},
};

}  // namespace

int main() {
    for (;;) {
        const Invoke& called = calls.at(read_bytes<std::string>());
        std::vector<Argument> arguments(read<std::uint64_t>());
        called(arguments);
        for (const Argument& argument : arguments)
            if (argument.kind == 'a') write(argument.array.data(), argument.array.size());
        std::fflush(stdout);
    }
}
