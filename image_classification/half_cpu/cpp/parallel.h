// Threads of the OpenMP runtime that Paddle and oneDNN share. Only what that runtime exports is used: parallel regions.
#pragma once
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

// Call f(task) for each task. Each thread has a share of neighbours, whose memory is read ahead from one to the next, and
// then takes what is left of the shares of slower ones.
template <class F>
static void for_tasks(long tasks, F f) {
    struct alignas(64) Share {  // a line of the cache each
        std::atomic<long> next;
    };
    constexpr int MOST = 64;
    const int shares = (int)std::min<long>(std::min(omp_get_max_threads(), MOST), tasks);
    if (shares <= 1) {
        for (long task = 0; task < tasks; task++) f(task);
        return;
    }
    Share share[MOST];
    for (int i = 0; i < shares; i++) share[i].next.store(tasks * i / shares, std::memory_order_relaxed);
#pragma omp parallel
    for (int i = 0, own = omp_get_thread_num(); i < shares; i++) {
        const int which = (own + i) % shares;
        const long end = tasks * (which + 1) / shares;
        for (long task; (task = share[which].next.fetch_add(1, std::memory_order_relaxed)) < end;) f(task);
    }
}

// The same in this thread alone, where there is little to do.
template <class F>
static void for_tasks(bool few, long tasks, F f) {
    if (few) for (long task = 0; task < tasks; task++) f(task);
    else for_tasks(tasks, f);
}

constexpr long GRAIN = 16384;  // elements: less is not worth a thread

// Call f(first, last) for ranges of 0..n that are no smaller than `grain` and the same for any number of threads.
template <class F>
static void for_ranges(long n, long grain, F f) {
    long size = std::max(std::max(grain, 1L), (n + 255) / 256);
    long tasks = (n + size - 1) / size;
    for_tasks(tasks, [&](long task) { f(task * size, std::min(n, (task + 1) * size)); });
}

// Numbers of one call, aligned for vectors.
class Floats {
  public:
    explicit Floats(size_t count) : data_((float*)aligned_alloc(64, (count * sizeof(float) + 64) / 64 * 64)) {
        if (!data_) abort();
    }
    Floats(const Floats&) = delete;
    ~Floats() { free(data_); }
    operator float*() const { return data_; }

  private:
    float* data_;
};

// The same of a thread; kept between calls and grown when needed.
class Scratch {
  public:
    ~Scratch() { free(data_); }
    float* floats(size_t count) {
        if (count > size_) {
            free(data_);
            size_ = count;
            data_ = (float*)aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
            if (!data_) abort();
        }
        return data_;
    }

  private:
    float* data_ = nullptr;
    size_t size_ = 0;
};
