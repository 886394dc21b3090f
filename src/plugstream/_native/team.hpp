// A few threads that work on one call together. Not OpenMP: torch brings its own copy, and two of them in one process
// fight over the cores.
#pragma once

#include <memory>
#include <system_error>
#include <thread>

namespace plugstream {

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Waits until `ready()` holds: a few microseconds in place, since most waits are shorter than a sleep and a wake-up,
// then giving the core away, since there may be fewer free cores than threads.
template <class Ready>
void wait_until(Ready&& ready) {
    for (int spins = 0; !ready(); ++spins) {
        if (spins < 256)
            relax();
        else
            std::this_thread::yield();
    }
}

// Runs job->work(member) here, as member 0, and on up to size - 1 helpers, and returns when the call here does. It
// must return only when all work is done, whoever did it; a helper that comes late finds nothing left to claim and
// goes away without touching anything but the job, which it keeps alive. So a core that is busy elsewhere (torch's
// own threads spin for a while after each operation) slows a call down but never holds it up.
template <class Job>
void run_team(int size, const std::shared_ptr<Job>& job) {
    try {
        for (int member = 1; member < size; ++member) std::thread([job, member] { job->work(member); }).detach();
    } catch (const std::system_error&) {
        // The system has no thread to give: those that are here do the work.
    }
    job->work(0);
}

}  // namespace plugstream
