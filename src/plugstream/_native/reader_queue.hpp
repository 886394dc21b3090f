// Several places of files asked for at once, past the page cache, and waited for once.
//
// A thread that reads ten views one after another sleeps and wakes ten times, and each time it wakes one that computes
// has to leave its core. Linux takes a list of direct reads (io_submit) and wakes the thread when all of them are there:
// half of the processor time for the system, and one wake-up instead of ten. It is asked for by number, since the C
// library has no functions for it, and wherever it is refused (containers may) the caller reads in turn.
#pragma once

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace plugstream::reader {

struct Request {
    int handle;  // of a file opened with O_DIRECT
    uint8_t* memory;
    int64_t first, bytes;  // place, memory and size in whole blocks
    int64_t got = -1;      // bytes that were read; below zero if it was not done
};

class Queue {
public:
    static constexpr size_t most = 64;  // requests at once

    // One for each thread, since what a thread asked for is what it waits for.
    static Queue& of_thread() {
        static thread_local Queue queue;
        return queue;
    }
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    // Do up to `most` requests and say what became of each; none, where the system does not take them.
    void run(Request* requests, size_t count) {
        if (context_ == 0) return;
        std::array<iocb, most> blocks{};
        std::array<iocb*, most> list;
        for (size_t n = 0; n < count; ++n) {
            iocb& block = blocks[n];
            block.aio_data = n;
            block.aio_lio_opcode = IOCB_CMD_PREAD;
            block.aio_fildes = static_cast<uint32_t>(requests[n].handle);
            block.aio_buf = reinterpret_cast<uint64_t>(requests[n].memory);
            block.aio_nbytes = static_cast<uint64_t>(requests[n].bytes);
            block.aio_offset = requests[n].first;
            list[n] = &block;
        }
        const long taken = ::syscall(SYS_io_submit, context_, static_cast<long>(count), list.data());
        std::array<io_event, most> events;
        for (long done = 0; done < taken;) {
            const long left = taken - done;
            const long more = ::syscall(SYS_io_getevents, context_, left, left, events.data(), nullptr);
            if (more < 0 && errno == EINTR) continue;
            if (more < 0) {
                close();  // which returns when nothing writes into the memory any more
                for (size_t n = 0; n < count; ++n) requests[n].got = -1;
                return;
            }
            for (long n = 0; n < more; ++n) requests[events[n].data].got = events[n].res;
            done += more;
        }
    }

private:
    Queue() {
        if (::syscall(SYS_io_setup, most, &context_) != 0) context_ = 0;
    }
    ~Queue() { close(); }
    void close() {
        if (context_ != 0) ::syscall(SYS_io_destroy, context_);
        context_ = 0;
    }

    aio_context_t context_ = 0;  // a process that was forked has none, and its requests are refused
};

}  // namespace plugstream::reader
