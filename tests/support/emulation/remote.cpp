// The kernels of another machine as a program, which an emulator runs.
//
// A call comes on stdin: a name, and arguments that are integers, floating-point numbers or byte arrays. The result goes
// to stdout, followed by every array as the call left it. All numbers are little-endian.

#include KERNELS  // the file of an instruction set

#include <cstdio>
#include <functional>
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

using Call = std::function<void(std::vector<Argument>&)>;

template <class R, class... P>
Call callable(R (*function)(P...)) {
    return [=](std::vector<Argument>& arguments) {
        if (arguments.size() != sizeof...(P)) std::abort();
        call(function, arguments, std::index_sequence_for<P...>());
    };
}

const std::map<std::string, Call> calls = {
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
    {"swiftlet_add_vector", callable(swiftlet_add_vector)},
    {"swiftlet_add_words", callable(swiftlet_add_words)},
    {"swiftlet_finish", callable(swiftlet_finish)},
    {"swiftlet_run", callable(swiftlet_run)},
    {"swiftlet_destroy", callable(swiftlet_destroy)},
    {"swiftlet_multiply", callable(swiftlet_multiply)},
    {"swiftlet_attend", callable(swiftlet_attend)},
    {"swiftlet_top_k", callable(swiftlet_top_k)},
    {"swiftlet_layer_norm", callable(swiftlet_layer_norm)},
};

}  // namespace

int main() {
    for (;;) {
        const Call& called = calls.at(read_bytes<std::string>());
        std::vector<Argument> arguments(read<std::uint64_t>());
        called(arguments);
        for (const Argument& argument : arguments)
            if (argument.kind == 'a') write(argument.array.data(), argument.array.size());
        std::fflush(stdout);
    }
}
