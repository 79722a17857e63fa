/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer of a decode step as a stream of the state through each multiprocessor that waits for as little else as possible.
 * A block stays for the whole launch and takes unit after unit. Its warps have roles, a pipeline of four:
 *
 *   plan      one warp finds the next unit's row and its slot, cursor and maps
 *   load      one warp asks for the tiles of planned units, as stages of shared memory become free
 *   prepare   teams, unit and unit about: records, the new tokens, the walk, into a unit's working memory
 *   evaluate  warps, tile and tile about, fold and read the tiles, and write the outputs together
 *
 * Units are handed out one at a time, so that blocks whose rows fold take fewer. Which block takes a unit does not
 * change a bit of it.
 */
#include "cuda/device/unit.cuh"

/* A stage belongs to one warp that evaluates: its warp has then seen every phase of it. So has a team that prepares of each
   buffer, as there are no fewer of these than teams. */
enum {
    WARPS = RSSM_STREAM_WARPS,
    EVALUATE = 32 * WARPS,
    FIRST = 64, /* of those that evaluate */
    PREPARE = 192,
    THREADS = FIRST + EVALUATE + PREPARE, /* sixteen warps have 128 registers each */
    PLANS = 6
};
/* Teams that prepare: where a vector is walked, one more of fewer threads does better. */
template <bool DELTA> struct preparers {
    static constexpr int TEAMS = DELTA ? 3 : 2, SIZE = PREPARE / TEAMS;
    static_assert(TEAMS <= RSSM_STREAM_BUFFERS_LEAST, "a buffer for each team");
};
static_assert((int)RSSM_STREAM_STAGES == (int)WARPS, "a stage for each warp that evaluates");

struct unit_plan {
    bool last; /* there is no unit here and none after it */
    step_row row;
    slot_parts slot;
    head_place place;
    /* copies of the slot's: */
    rssm_cursor cursor;
    rssm_layer_cursor layer;
};

struct pipeline {
    unit_plan plan[PLANS];
    uint64_t plan_full[PLANS], plan_free[PLANS];
    uint64_t unit_full[RSSM_STREAM_BUFFERS_MAX], unit_free[RSSM_STREAM_BUFFERS_MAX]; /* working memory */
    uint64_t stage_full[RSSM_STREAM_STAGES], stage_free[RSSM_STREAM_STAGES];
};

template <int TEAMS> static __device__ void open_pipeline(const rssm_cuda_step &c, pipeline &pipe) {
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLANS; i++) {
            open_barrier(&pipe.plan_full[i], 1);
            open_barrier(&pipe.plan_free[i], 1 + TEAMS + WARPS);
        }
        for (int i = 0; i < c.buffers; i++) {
            open_barrier(&pipe.unit_full[i], 1);
            open_barrier(&pipe.unit_free[i], WARPS);
        }
        for (int i = 0; i < RSSM_STREAM_STAGES; i++) {
            open_barrier(&pipe.stage_full[i], COPY_ARRIVALS);
            open_barrier(&pipe.stage_free[i], 1);
        }
        barriers_opened();
    }
    __syncthreads();
}

/* ---- Plan --------------------------------------------------------------------------------------------- */

/* The blocks that have ended put the count of units back for the next launch. */
static __device__ void leave_units(rssm_cuda_words *words) {
    __threadfence();
    if (atomicAdd(&words->left, 1u) + 1 == gridDim.x) {
        words->left = 0;
        words->unit = 0;
    }
}

/* Asks for a piece of a record to be brought near. */
static __device__ __forceinline__ void prefetch(const void *from, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes) : "memory");
#else
    for (int i = 0; i < bytes; i += 128) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global((const char *)from + i)));
    }
#endif
}

/* The records that a unit will gather, a lane for each. */
static __device__ __forceinline__ void prefetch_records(const rssm_cuda_step &c, const unit_plan &plan, int lane) {
    const rssm_geometry &g = c.geometry;
    const int n = plan.row.history - plan.row.first, element = g.bf16 ? 2 : 4, decay = g.raw_records ? element : 4;
    for (int j = lane; j < n; j += 32) {
        const int r = plan.cursor.row_map[plan.row.first + j];
        prefetch(plan.slot.record_k + record_at(g, plan.place.key, r, g.d_k) * element, g.d_k * element);
        for (int i = 0; i < c.heads; i++) {
            const int hv = head_at(g, plan.place, i).hv;
            prefetch(plan.slot.record_v + record_at(g, hv, r, g.d_v) * element, g.d_v * element);
            if (g.vector_decay) {
                prefetch(plan.slot.record_decay + record_at(g, hv, r, g.d_k) * decay, g.d_k * decay);
            }
        }
    }
}

/* A warp copies a structure of words. */
template <class T> static __device__ __forceinline__ void copy_words(T *to, const T *from, int lane) {
    for (int i = lane; i < (int)(sizeof(T) / 4); i += 32) {
        __pipeline_memcpy_async((uint32_t *)to + i, (const uint32_t *)from + i, 4);
    }
}

/* Finds what a row's unit has to do; false if nothing. */
static __device__ __forceinline__ bool plan_unit(const rssm_cuda_step &c, int unit, int units, unit_plan &plan,
                                int lane) {
    const int index = unit / units;
    slot_parts slot = {};
    step_row row = locate_row(c, index, &slot);
    if (!row.work) {
        return false;
    }
    if (slot.cursor != nullptr) {
        copy_words(&plan.cursor, slot.cursor, lane);
        copy_words(&plan.layer, slot.layer, lane);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncwarp();
        plan_row(c, index, false, &plan.cursor, &plan.layer, &row);
    }
    if (lane == 0) {
        plan.last = false;
        plan.row = row;
        plan.slot = slot;
        plan.place = place_of_unit(c.geometry, 1, c.layout.slice, c.heads, index, unit - index * units);
    }
    __syncwarp();
    return true;
}

static __device__ __forceinline__ void plan_units(const rssm_cuda_step &c, pipeline &pipe) {
    const int lane = threadIdx.x & 31, units = c.geometry.value_heads / c.heads, total = units * c.batch.rows;
    const bool shared = total > (int)gridDim.x;
    ring_place to = {0, 0};
    for (int unit = blockIdx.x, next; unit < total; unit = next) {
        unit_plan &plan = pipe.plan[to.at];
        next = total;
        if (shared && lane == 0) {
            next = (int)(gridDim.x + atomicAdd(&c.words->unit, 1u));
        }
        wait_free(&pipe.plan_free[to.at], to);
        if (plan_unit(c, unit, units, plan, lane)) {
            warp_arrives(&pipe.plan_full[to.at]);
            if (plan.row.live) {
                prefetch_records(c, plan, lane);
                if (lane == 0) {
                    __threadfence(); /* behind the copies of the cursors */
                    count_unit(c, plan.row, plan.slot, work_of(c, plan.row).fold, (unsigned)units);
                }
            }
            to.go_on(PLANS);
        }
        next = __shfl_sync(0xffffffffu, next, 0);
    }
    wait_free(&pipe.plan_free[to.at], to);
    if (lane == 0) {
        pipe.plan[to.at].last = true;
        arrive(&pipe.plan_full[to.at]);
        if (shared) {
            leave_units(c.words);
        }
    }
}

/* ---- Load --------------------------------------------------------------------------------------------- */

template <class S> struct tile_rows { /* of a warp */
    static constexpr int ROWS = S::ROWS * 4, WIDTH = 32 * S::BLOCKS * 4;
    static_assert(ROWS * WIDTH == RSSM_STREAM_STAGE_BYTES, "a stage holds a tile");
};

template <class S> static __device__ __forceinline__ void load_units(const rssm_cuda_step &c, pipeline &pipe, char *stages) {
    const rssm_geometry &g = c.geometry;
    constexpr int ROWS = tile_rows<S>::ROWS, WIDTH = tile_rows<S>::WIDTH;
    ring_place from = {0, 0}, to = {0, 0};
    for (;; from.go_on(PLANS)) {
        const unit_plan &plan = pipe.plan[from.at];
        wait_full(&pipe.plan_full[from.at], from);
        if (plan.last) {
            return;
        }
        for (int i = 0; plan.row.live && i < c.heads; i++) {
            const char *state = (const char *)(plan.slot.checkpoint + (int64_t)head_at(g, plan.place, i).hv * g.d_v * g.d_k);
            for (int first = 0; first < g.d_v; first += ROWS, to.go_on(RSSM_STREAM_STAGES)) {
                const int left = g.d_v - first;
                wait_free(&pipe.stage_free[to.at], to);
                copy_in(stages + to.at * RSSM_STREAM_STAGE_BYTES, state + (int64_t)first * WIDTH, (left < ROWS ? left : ROWS) * WIDTH,
                        &pipe.stage_full[to.at]);
            }
        }
        warp_arrives(&pipe.plan_free[from.at]);
    }
}

/* ---- Prepare ------------------------------------------------------------------------------------------ */

template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void prepare_units(const rssm_cuda_step &c, pipeline &pipe, float *buffers,
                                int number, const team &w) {
    ring_place from = {0, 0}, to = {0, 0};
    for (int i = 0;; i = i + 1 == preparers<DELTA>::TEAMS ? 0 : i + 1, from.go_on(PLANS), to.go_on(c.buffers)) {
        const unit_plan &plan = pipe.plan[from.at];
        wait_full(&pipe.plan_full[from.at], from);
        if (plan.last) {
            return;
        }
        if (i == number) {
            wait_free(&pipe.unit_free[to.at], to);
            if (plan.row.live) {
                const memory m = memory_at(buffers + to.at * c.layout.total, c.layout);
                prepare_unit<S, DELTA, VECTOR, preparers<DELTA>::SIZE>(w, c, plan.row, plan.slot, plan.place, plan.cursor.row_map,
                                                                       plan.cursor.conv_map, m);
            }
        }
        w.sync(); /* all have done, or seen that it is another team's */
        if (w.thread == 0) {
            if (i == number) {
                arrive(&pipe.unit_full[to.at]);
            }
            arrive(&pipe.plan_free[from.at]);
        }
    }
}

/* ---- Evaluate ----------------------------------------------------------------------------------------- */

/* The tiles of a unit that fall to a warp: every WARPS-th, from `tile` on, through the heads. */
template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void evaluate_tiles(const rssm_cuda_step &c, pipeline &pipe, const unit_plan &plan, const memory &m,
                                      const float *stages, int number, int tile_at, int per_head, uint32_t &round) {
    const rssm_geometry &g = c.geometry;
    const tile_place at = place_of<32>((int)threadIdx.x & 31, g.d_k, g.d_v);
    const unit_work work = work_of(c, plan.row);
    for (; tile_at < per_head * c.heads; tile_at += WARPS, round ^= 1) {
        const int head = tile_at / per_head, first = (tile_at - head * per_head) * tile_rows<S>::ROWS;
        float *state = plan.slot.checkpoint + (int64_t)head_at(g, plan.place, head).hv * g.d_v * g.d_k;
        tile<S> x;
        wait_for(&pipe.stage_full[number], round);
        take_tile<S>(x, at, stages + number * (RSSM_STREAM_STAGE_BYTES / 4));
        warp_arrives(&pipe.stage_free[number]);
        evaluate_tile<S, DELTA, VECTOR>(x, at, c, work, state, first, memory_of_head(m, c.layout, head));
    }
}

template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void evaluate_units(const rssm_cuda_step &c, pipeline &pipe, const float *stages,
                                float *buffers, const team &w) {
    const int number = w.thread / 32, per_head = (c.geometry.d_v + tile_rows<S>::ROWS - 1) / tile_rows<S>::ROWS;
    ring_place from = {0, 0}, unit = {0, 0};
    uint32_t round = 0;
    int turn = number; /* the warp's first tile of the unit */
    for (;; from.go_on(PLANS), unit.go_on(c.buffers)) {
        const unit_plan &plan = pipe.plan[from.at];
        wait_full(&pipe.plan_full[from.at], from);
        if (plan.last) {
            return;
        }
        const memory m = memory_at(buffers + unit.at * c.layout.total, c.layout);
        wait_full(&pipe.unit_full[unit.at], unit);
        if (plan.row.live) {
            evaluate_tiles<S, DELTA, VECTOR>(c, pipe, plan, m, stages, number, turn, per_head, round);
            turn = (turn + (WARPS - 1) * (per_head * c.heads)) % WARPS; /* less the unit's tiles */
            w.sync();
            write_outputs(w, c, plan.place, plan.row.token, plan.row.tokens, c.heads, m);
        } else {
            for (int i = 0; i < c.heads; i++) {
                write_zeros(w, c, head_at(c.geometry, plan.place, i), plan.row);
            }
        }
        warp_arrives(&pipe.unit_free[unit.at]);
        warp_arrives(&pipe.plan_free[from.at]);
    }
}

/* ---- The kernel --------------------------------------------------------------------------------------- */

template <class S, bool DELTA, bool VECTOR>
static __global__ void __launch_bounds__(THREADS, 1) decode_stream(const __grid_constant__ rssm_cuda_step c) {
    extern __shared__ __align__(128) float4 shared[];
    __shared__ pipeline pipe;
    const int thread = (int)threadIdx.x;
    float *stages = (float *)shared, *buffers = stages + RSSM_STREAM_STAGES * (RSSM_STREAM_STAGE_BYTES / 4);
    open_pipeline<preparers<DELTA>::TEAMS>(c, pipe);
    if (thread < 32) {
        plan_units(c, pipe);
    } else if (thread < FIRST) {
        load_units<S>(c, pipe, (char *)stages);
    } else if (thread < FIRST + EVALUATE) {
        evaluate_units<S, DELTA, VECTOR>(c, pipe, stages, buffers, team{thread - FIRST, EVALUATE, 1});
    } else {
        constexpr int SIZE = preparers<DELTA>::SIZE;
        const int at = thread - FIRST - EVALUATE, number = at / SIZE;
        prepare_units<S, DELTA, VECTOR>(c, pipe, buffers, number, team{at - number * SIZE, SIZE, 2 + number});
    }
}

typedef void (*stream_kernel)(rssm_cuda_step);

#ifdef RSSM_CUDA_ONE_INSTANCE
static const stream_kernel kernels[2][3] = {{nullptr, nullptr, nullptr}, {nullptr, decode_stream<shape_128, true, false>, nullptr}};
#else
#define KINDS(S) {decode_stream<S, false, false>, decode_stream<S, true, false>, decode_stream<S, true, true>}
static const stream_kernel kernels[2][3] = {KINDS(shape_64), KINDS(shape_128)};
#endif

extern "C" int rssm_launch_decode_stream(const rssm_cuda_step *call, void *stream) {
    const rssm_geometry &g = call->geometry;
    const int64_t units = (int64_t)g.value_heads / call->heads * call->batch.rows;
    const unsigned blocks = (unsigned)(units < call->streams ? units : call->streams);
    const size_t bytes = (size_t)RSSM_STREAM_STAGES * RSSM_STREAM_STAGE_BYTES + (size_t)call->buffers * call->layout.total * 4;
    kernels[g.d_k == 128][g.kind - RSSM_MAMBA2]<<<blocks, THREADS, bytes, (cudaStream_t)stream>>>(*call);
    return (int)cudaGetLastError();
}

extern "C" int rssm_load_decode_stream(int shared_bytes) {
    return load_table(&kernels[0][0], 6, shared_bytes);
}
