// Queues of work. In lazy mode a queue begins only when someone waits for it (or 4,096 pieces wait): a result that is
// read without a wait is then always missing, not only when the machine is slow.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "runtime.h"

namespace testdev {

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool running = false, closed = false;
  int waiting = 0;
  std::thread worker;

  bool may_start() const {
    return !work.empty() && (waiting > 0 || closed || !figures().lazy || work.size() > 4096);
  }

  void loop() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return may_start() || (closed && work.empty()); });
      if (work.empty()) return;
      auto next = std::move(work.front());
      work.pop_front();
      running = true;
      lock.unlock();
      try {
        next();
      } catch (const std::exception& error) {
        fail(error.what());
      }
      next = nullptr;
      lock.lock();
      running = false;
      changed.notify_all();
    }
  }
};

namespace {

// Never destroyed: queues may still run while the process ends.
std::mutex& all_mutex = *new std::mutex;
std::set<Queue*>& all = *new std::set<Queue*>;
std::mutex& failure_mutex = *new std::mutex;
std::string& failure = *new std::string;

}  // namespace

Queue* create_queue() {
  auto* queue = new Queue;
  queue->worker = std::thread([queue] { queue->loop(); });
  std::lock_guard<std::mutex> lock(all_mutex);
  all.insert(queue);
  return queue;
}

void destroy_queue(Queue* queue) {
  {
    std::lock_guard<std::mutex> lock(all_mutex);
    if (!all.erase(queue)) return;
  }
  {
    std::lock_guard<std::mutex> lock(queue->mutex);
    queue->closed = true;
    queue->changed.notify_all();
  }
  queue->worker.join();
  delete queue;
}

void enqueue(Queue* queue, std::function<void()> work) {
  std::lock_guard<std::mutex> lock(queue->mutex);
  queue->work.push_back(std::move(work));
  if (queue->may_start()) queue->changed.notify_all();
}

void drain_until(Queue* queue, const std::function<bool()>& reached) {
  std::unique_lock<std::mutex> lock(queue->mutex);
  ++queue->waiting;
  queue->changed.notify_all();
  queue->changed.wait(lock, [&] { return reached() || (queue->work.empty() && !queue->running); });
  --queue->waiting;
}

void drain(Queue* queue) {
  drain_until(queue, [] { return false; });
}

bool is_idle(Queue* queue) {
  std::lock_guard<std::mutex> lock(queue->mutex);
  return queue->work.empty() && !queue->running;
}

void drain_all() {
  std::set<Queue*> queues;
  {
    std::lock_guard<std::mutex> lock(all_mutex);
    queues = all;
  }
  for (auto* queue : queues) drain(queue);
}

void fail(const std::string& message) {
  std::lock_guard<std::mutex> lock(failure_mutex);
  if (failure.empty()) failure = message;
}

std::string take_failure() {
  std::lock_guard<std::mutex> lock(failure_mutex);
  return std::exchange(failure, "");
}

void count_wait() {
  ++figures().waits;
  std::lock_guard<std::mutex> lock(all_mutex);
  if (!std::all_of(all.begin(), all.end(), is_idle)) ++figures().syncs;
}

}  // namespace testdev
