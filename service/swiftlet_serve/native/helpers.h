// Threads that help with running calls while cores are idle.
//
// A call is a list of tasks, in stages: the tasks of a stage may run at the same time, after all those of the stage before. If
// they cannot be divided well, threads share the steps of each task instead.
// The thread that makes the call takes one task after another. A helper joins the call with the most tasks left while fewer
// threads work than there are cores. It leaves between two tasks when a new call arrives. Helpers wait without spinning.
// Which thread computes a task changes no result. A helper belongs to a NUMA node, and joins calls that started there.

#pragma once

#ifdef __linux__
#include <sched.h>
#endif
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

ALWAYS_INLINE void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A NUMA node: cores with memory of their own. Helpers wait for the calls of theirs.
struct Node {
    std::atomic<int> cores{std::numeric_limits<int>::max()}, busy{0};
    std::vector<int> cpus;  // of its helpers; all if empty
    int started = 0;        // helpers
    std::condition_variable called;
};

// Parts of a step that the thread of a call shares with helpers. The parts of the next step follow within microseconds, so that
// helpers spin meanwhile.
class SharedStep {
   public:
    // Runs a function for each part, on this thread and on those in `assist`. Throws what the function throws.
    template <class Run>
    void share(int parts, Run&& run) {
        run_ = [](void* function, int part, bool helps) { (*static_cast<std::remove_reference_t<Run>*>(function))(part, helps); };
        function_ = &run, done_.store(0, std::memory_order_relaxed);
        const std::uint64_t step = (left_.load(std::memory_order_relaxed) >> 24) + 1;
        left_.store(step << 24 | static_cast<std::uint64_t>(parts) << 16 | static_cast<std::uint64_t>(parts / 2) << 8, std::memory_order_release);
        while (take(false)) {}
        for (int i = 0; done_.load(std::memory_order_acquire) < parts;) wait(i);
        if (failure_) std::rethrow_exception(failure_);
    }

    // Runs parts of one step after another until `leaves` says so.
    template <class Leaves>
    void assist(Leaves&& leaves) {
        assisting_++;
        for (int i = 0; !leaves();) {
            if (take(true))
                i = 0;
            else
                wait(i);
        }
        assisting_--;
    }
    bool assisted() const { return assisting_.load(std::memory_order_relaxed) > 0; }

   private:
    static constexpr int spins = 2000;

    // `waits` counts up to `spins`. From then on, other threads get the core.
    static void wait(int& waits) { waits < spins ? (waits++, pause_briefly()) : std::this_thread::yield(); }

    // Runs a part, if one is left. The first half is for the thread of the call, and the second one for helpers: a thread reads
    // weights in their order as long as there are any of its own.
    bool take(bool helps) {
        std::uint64_t left = left_.load(std::memory_order_acquire);
        for (;;) {
            const int parts = left >> 16 & 0xff, first = left & 0xff, second = left >> 8 & 0xff;
            const bool has_first = first < parts / 2, has_second = second < parts;
            if (!has_first && !has_second) return false;
            const bool takes_first = helps ? !has_second : has_first;
            if (!left_.compare_exchange_weak(left, left + (takes_first ? 1 : 1 << 8), std::memory_order_acq_rel, std::memory_order_acquire)) continue;
            try {
                run_(function_, takes_first ? first : second, helps);
            } catch (...) {
                if (!failed_.exchange(true)) failure_ = std::current_exception();
            }
            done_.fetch_add(1, std::memory_order_acq_rel);
            return true;
        }
    }

    // The number of the step, and a byte each: its parts, the next part of its second half, and of its first half.
    std::atomic<std::uint64_t> left_{0};
    std::atomic<int> assisting_{0}, done_{0};
    void (*run_)(void*, int, bool) = nullptr;
    void* function_ = nullptr;
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_;
};

// The tasks of a call. Several threads may run them at the same time.
class Tasks {
   public:
    virtual ~Tasks() = default;

    int left() const { return std::max(0, count() - next_.load(std::memory_order_relaxed)); }
    // The most threads that can run it at the same time.
    int widest() const { return shares_steps_ ? most_sharing : widest_; }

    // Takes tasks until none is left, or until `leaves` says so between two tasks.
    template <class Leaves>
    void work(Leaves&& leaves) {
        while (!leaves()) {
            const int task = next_.fetch_add(1, std::memory_order_relaxed);
            if (task >= count()) return;
            const int stage = static_cast<int>(std::upper_bound(ends_.begin(), ends_.end(), task) - ends_.begin());
            if (stage) wait_for(ends_[stage - 1]);
            if (!failed_.load(std::memory_order_relaxed)) try {
                run(stage, task - (stage ? ends_[stage - 1] : 0));
            } catch (...) {
                if (!failed_.exchange(true)) failure_ = std::current_exception();
            }
            done_++;  // in one order with `sleepers_`, so that no sleeper misses it
            if (sleepers_) wake();
        }
    }

    // What a helper does: it takes tasks, or its part of steps.
    template <class Leaves>
    void help(Leaves&& leaves) {
        if (!shares_steps_) return work(leaves);
        step_.assist([&] { return done_.load(std::memory_order_acquire) >= count() || leaves(); });
    }

    // Waits until all tasks are done. Throws what a task has thrown.
    void finish() {
        wait_for(count());
        if (failure_) std::rethrow_exception(failure_);
    }

    // What a thread does after it has left.
    virtual void after_work() {}

    Node* node = nullptr;                    // whose helpers may join
    int helpers = 0;                         // that have joined. `Helpers` guards it
    std::atomic<std::int64_t> helped_ns{0};  // the time of all helpers

   protected:
    // Adds a stage of some tasks.
    void add_stage(int tasks) {
        ends_.push_back(count() + tasks);
        widest_ = std::max(widest_, tasks);
    }
    virtual void run(int stage, int task) = 0;

    static constexpr int most_sharing = 4;  // threads of a call that shares its steps
    bool shares_steps_ = false;             // instead of its tasks
    mutable SharedStep step_;

   private:
    int count() const { return ends_.empty() ? 0 : ends_.back(); }

    // Waits until this many tasks are done: the threads that run them are about to finish, unless something stops them.
    void wait_for(int tasks) {
        constexpr int spins = 2000;
        for (int i = 0; i < spins; i++) {
            if (done_.load(std::memory_order_acquire) >= tasks) return;
            pause_briefly();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_++;
        changed_.wait(lock, [&] { return done_ >= tasks; });
        sleepers_--;
    }
    void wake() {
        const std::lock_guard<std::mutex> lock(mutex_);
        changed_.notify_all();
    }

    std::vector<int> ends_;  // of the stages: the tasks up to there
    int widest_ = 0;
    std::atomic<int> next_{0}, done_{0}, sleepers_{0};
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_;
    std::mutex mutex_;
    std::condition_variable changed_;
};

// The helpers of a process. They start with the first call that they can help with.
class Helpers {
   public:
    static Helpers& instance() {
        static Helpers* const helpers = new Helpers;  // never destroyed: threads wait in it when the process exits
        return *helpers;
    }

    // The cores that all calls of the process may use together. 1: nobody helps.
    void set_cores(int cores) { cores_ = cores; }
    // Tells the physical cores of each node, and the node of each CPU, or -1. Only the first call has an effect, and only before
    // helpers have started.
    void set_nodes(int nodes, const std::int32_t* cores, int cpus, const std::int32_t* node_of_cpu) {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (nodes > static_cast<int>(nodes_.size()) || nodes_known_ || nodes_[0].started) return;
        node_of_cpu_.assign(node_of_cpu, node_of_cpu + cpus);
        for (int cpu = 0; cpu < cpus; cpu++)
            if (node_of_cpu[cpu] >= 0) nodes_[node_of_cpu[cpu]].cpus.push_back(cpu);
        for (int node = 0; node < nodes; node++) nodes_[node].cores = cores[node];
        nodes_known_ = true;
    }
    // The cores that are left for calls on this thread's node.
    int idle_cores() { return idle_cores(here()); }

    // Runs the tasks of a call, on this thread and on helpers. Throws what a task throws.
    void run(Tasks& call) {
        const bool has_helpers = getpid() == process_;  // a process that was forked has none, and a lock nobody releases
        Node& node = here();
        call.node = &node;
        busy_++, node.busy++;
        const bool shared = has_helpers && cores_ > 1 && call.widest() > 1 && offer(call);
        call.work([] { return false; });
        if (shared) withdraw(call);
        busy_--, node.busy--;
        if (has_helpers && offered_) wake_one();
        call.after_work();
        call.finish();
    }

   private:
    Helpers() : process_(getpid()) {}

    // Lets helpers join a call. Returns false if there is no memory: the call then runs on its own thread.
    bool offer(Tasks& call) {
        const std::lock_guard<std::mutex> lock(mutex_);
        try {
            calls_.push_back(&call);
        } catch (const std::bad_alloc&) {
            return false;
        }
        offered_++;
        Node& node = *call.node;
        while (node.started < std::min(cores_.load(), node.cores.load()) - 1 && start(node)) {}
        for (int i = std::min(idle_cores(node), call.widest() - 1); i > 0; i--) node.called.notify_one();
        return true;
    }
    // No helper joins a call afterwards, and none is in it.
    void withdraw(Tasks& call) {
        std::unique_lock<std::mutex> lock(mutex_);
        calls_.erase(std::find(calls_.begin(), calls_.end(), &call)), offered_--;
        gone_.wait(lock, [&] { return call.helpers == 0; });
    }
    // A core is idle, which another call can use.
    void wake_one() {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (Node& node : nodes_)
            if (node.started) node.called.notify_one();
    }
    // The node of the CPU that this thread is on.
    Node& here() {
        int node = 0;
#ifdef __linux__
        if (nodes_known_)
            if (const int cpu = sched_getcpu(); cpu >= 0 && cpu < static_cast<int>(node_of_cpu_.size())) node = std::max(0, node_of_cpu_[cpu]);
#endif
        return nodes_[node];
    }
    int idle_cores(const Node& node) const { return std::max(0, std::min(cores_ - busy_, node.cores - node.busy)); }

    // Starts a helper. It gets no signals, which are for Python's threads.
    bool start(Node& node) {
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        bool works = true;
        try {
            std::thread([this, &node] { help(node); }).detach();
            node.started++;
        } catch (const std::exception&) {  // no more threads: calls run with those that there are
            works = false;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return works;
    }

    void help(Node& node) {
        stay_on(node);
        std::unique_lock<std::mutex> lock(mutex_);
        for (;;) {
            Tasks* call = nullptr;
            node.called.wait(lock, [&] { return busy_ < cores_ && node.busy < usable_cores(node) && (call = most_left(node)); });
            call->helpers++, busy_++, node.busy++;
            lock.unlock();
            const auto started = std::chrono::steady_clock::now();
            bool counted = true;
            call->help([&] { return !(counted = !gives_back(node)); });
            if (counted) busy_--, node.busy--;
            call->after_work();
            call->helped_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - started).count();
            lock.lock();
            if (--call->helpers == 0) gone_.notify_all();
        }
    }
    Tasks* most_left(const Node& node) const {
        Tasks* most = nullptr;
        for (Tasks* call : calls_)
            if (call->node == &node && call->helpers + 1 < call->widest() && call->left() > (most ? most->left() : 0)) most = call;
        return most;
    }
    // Gives a core back if more threads work than there are cores: of several helpers, only as many as are too many.
    bool gives_back(Node& node) {
        if (lower(busy_, cores_)) return node.busy--, true;
        if (lower(node.busy, node.cores)) return busy_--, true;
        return false;
    }
    static bool lower(std::atomic<int>& number, int limit) {
        for (int before = number; before > limit;)
            if (number.compare_exchange_weak(before, before - 1)) return true;
        return false;
    }
    // Keeps this thread on the CPUs of a node.
    static void stay_on([[maybe_unused]] const Node& node) {
#ifdef __linux__
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        for (int cpu : node.cpus) CPU_SET(cpu, &cpus);
        if (!node.cpus.empty()) sched_setaffinity(0, sizeof cpus, &cpus);
#endif
    }
    // The cores of a node that are left to this thread if it was confined to fewer.
    int usable_cores(const Node& node) const {
        int cores = std::min(cores_.load(), node.cores.load());
#ifdef __linux__
        cpu_set_t allowed;
        if (cores > 1 && !sched_getaffinity(0, sizeof allowed, &allowed)) {
            const auto is_allowed = [&](int cpu) { return CPU_ISSET(cpu, &allowed); };
            const std::vector<int>& own = node.cpus;
            cores = std::min<int>(cores, own.empty() ? CPU_COUNT(&allowed) : std::count_if(own.begin(), own.end(), is_allowed));
        }
#endif
        return cores;
    }

    const pid_t process_;
    std::atomic<int> cores_{1}, busy_{0}, offered_{0};
    std::array<Node, 64> nodes_;  // the first one alone, unless several are known
    std::vector<int> node_of_cpu_;
    std::atomic<bool> nodes_known_{false};
    std::vector<Tasks*> calls_;
    std::mutex mutex_;
    std::condition_variable gone_;
};

}  // namespace
