/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of a block at different work: teams that meet by themselves, barriers in shared memory that one role waits at
 * and another arrives at, and bulk copies that arrive there when their bytes have.
 */
#ifndef RSSM_CUDA_PIPELINE_CUH
#define RSSM_CUDA_PIPELINE_CUH

#include <stdint.h>

/* Whole warps that work together: a block, or some of its warps. */
struct team {
    int thread, threads;
    int number; /* of the hardware barrier they meet at; 0 is that of the whole block */

    __device__ __forceinline__ void sync() const {
        asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
    }
};

static __device__ __forceinline__ team whole_block() {
    return team{(int)threadIdx.x, (int)blockDim.x, 0};
}

/* A place in a ring of entries with barriers: how often the ring was gone round decides which phase to wait for. Who waits
   for a phase must know that the one before it is over. */
struct ring_place {
    int at;
    uint32_t round; /* its lowest bit */

    __device__ __forceinline__ void go_on(int entries) {
        if (++at == entries) {
            at = 0;
            round ^= 1;
        }
    }
};

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void open_barrier(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Barriers that were opened can be arrived at, also by copies, once the block has met. */
static __device__ __forceinline__ void barriers_opened() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

static __device__ __forceinline__ void arrive(uint64_t *barrier) {
    asm volatile("{\n\t.reg .b64 state;\n\tmbarrier.arrive.shared.b64 state, [%0];\n\t}" ::"r"(shared_address(barrier)) : "memory");
}

/* For a warp, all of whose lanes are done. */
static __device__ __forceinline__ void warp_arrives(uint64_t *barrier) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) {
        arrive(barrier);
    }
}

/* Until the phase with this parity is over; that before the first one is. */
static __device__ __forceinline__ void wait_for(uint64_t *barrier, uint32_t parity) {
    uint32_t over;
    do {
#if __CUDA_ARCH__ >= 900
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
#else
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
#endif
                     : "=r"(over)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    } while (over == 0);
}

static __device__ __forceinline__ void wait_full(uint64_t *barrier, const ring_place &place) {
    wait_for(barrier, place.round);
}

static __device__ __forceinline__ void wait_free(uint64_t *barrier, const ring_place &place) {
    wait_for(barrier, place.round ^ 1);
}

/* A warp copies `bytes`, a multiple of 16 at aligned addresses, to shared memory; they arrive at the barrier, which counts
   COPY_ARRIVALS. */
#if __CUDA_ARCH__ >= 900
enum { COPY_ARRIVALS = 1 };
static __device__ __forceinline__ void copy_in(void *to, const void *from, int bytes, uint64_t *barrier) {
    if ((threadIdx.x & 31) == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(to)),
                     "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
    }
}
#else
enum { COPY_ARRIVALS = 32 };
static __device__ __forceinline__ void copy_in(void *to, const void *from, int bytes, uint64_t *barrier) {
    for (int i = 16 * (threadIdx.x & 31); i < bytes; i += 512) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address((char *)to + i)),
                     "l"(__cvta_generic_to_global((const char *)from + i))
                     : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
#endif

#endif
